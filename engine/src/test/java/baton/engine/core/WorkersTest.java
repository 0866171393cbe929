package baton.engine.core;

import static baton.engine.core.CoreHarness.expected;
import static baton.engine.core.CoreHarness.prompt;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.CpuBinding;
import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.engine.FinishReason;
import baton.engine.ParallelConfig;
import baton.engine.SamplingParams;
import baton.engine.core.CoreHarness.Result;
import baton.engine.model.ModelRanks;
import baton.kv.BlockHasher;
import baton.kv.ConfigException;
import baton.kv.KvCache;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** A core with two ranks, each with an oracle of its own: reports and faults of one rank alone. */
class WorkersTest {
    private static final int BLOCKS = 64;
    private static final int BLOCK_SIZE = 4;

    private final OracleRunner first = new OracleRunner(BLOCKS, BLOCK_SIZE);
    private final OracleRunner second = new OracleRunner(BLOCKS, BLOCK_SIZE);
    private final RankedConnector connector = new RankedConnector();
    private Optional<EngineCore> made = Optional.empty();

    private EngineCore core(CpuBinding binding) {
        EngineConfig config = EngineConfig.of(Path.of("oracle"))
                .blockSize(BLOCK_SIZE)
                .enablePrefixCaching(false)
                .parallel(new ParallelConfig(2, 1, binding))
                .kvTransfer(KvTransferConfig.builder("Ranked", KvRole.BOTH)
                        .loadFailurePolicy(LoadFailurePolicy.RECOMPUTE)
                        .build())
                .build();
        ModelRanks ranks =
                new ModelRanks(List.of(first, second), 2, 1, first.cache().layout());
        EngineCore core = new EngineCore(
                config, ranks, Set.of(CoreHarness.EOS), Optional.of(connector), EngineListener.NONE, () -> 1, () -> {});
        made = Optional.of(core);
        return core;
    }

    @AfterEach
    void close() {
        made.ifPresent(core -> {
            assertThat(core.status(Optional.empty()).usedBlocks()).isZero();
            core.close();
            assertThat(connector.closed).isEqualTo(2);
        });
    }

    private Result add(EngineCore core, String id, int[] prompt, int tokens) {
        Result result = new Result(prompt);
        SamplingParams sampling = SamplingParams.builder()
                .temperature(0)
                .maxTokens(tokens)
                .ignoreEos(true)
                .build();
        BlockHasher hasher = new BlockHasher(BLOCK_SIZE);
        core.add(new Request(
                id,
                prompt,
                BLOCKS * BLOCK_SIZE,
                sampling,
                hasher,
                result,
                SequenceOptions.builder().arrivalNanos(1).build()));
        return result;
    }

    private static void run(EngineCore core) {
        for (int i = 0; core.hasWork(); i++) {
            core.step();
            core.checkInvariants();
            assertThat(i).as("steps").isLessThan(1000);
        }
    }

    @Test
    void everyRankComputesEveryStepOnAThreadOfItsOwn() {
        EngineCore core = core(CpuBinding.NONE);
        Result result = add(core, "a", prompt(1, 21), 5);
        run(core);
        assertThat(result.tokens).isEqualTo(expected(prompt(1, 21), 5));
        assertThat(first.computed).hasSameSizeAs(second.computed).hasSize(5);
        assertThat(first.loopingThreads).containsExactly("rank-pp0-tp0");
        assertThat(connector.threads)
                .containsEntry(new Rank(0, 0), Set.of("rank-pp0-tp0"))
                .containsEntry(new Rank(0, 1), Set.of("rank-pp0-tp1"));
        assertThat(connector.handshakes.keySet()).containsExactlyInAnyOrder(new Rank(0, 0), new Rank(0, 1));
        assertThat(connector.contexts).allSatisfy(context -> {
            assertThat(context.tensorParallelSize()).isEqualTo(2);
            assertThat(context.pipelineParallelSize()).isEqualTo(1);
        });
    }

    @Test
    void anAsynchronousLoadIsOverWhenBothRanksHaveIt() {
        connector.async = true;
        connector.loadTokens = 16;
        EngineCore core = core(CpuBinding.NONE);
        Result result = add(core, "a", prompt(1, 21), 3);
        core.step();
        connector.complete(0, "a");
        core.step();
        core.step();
        assertThat(core.status(Optional.empty()).waitingForRemoteKv()).isEqualTo(1);
        assertThat(result.tokens).isEmpty();
        connector.complete(1, "a");
        run(core);
        assertThat(result.tokens).isEqualTo(expected(prompt(1, 21), 3));
        assertThat(result.stats.orElseThrow().prompt().externalKvTransfer()).isEqualTo(16);
    }

    @Test
    void aBlockThatOneRankLacksIsComputedAgainHoweverEarlyItSaysSo() {
        connector.async = true;
        connector.loadTokens = 16;
        EngineCore core = core(CpuBinding.NONE);
        Result result = add(core, "a", prompt(1, 21), 3);
        core.step();
        connector.failing = 2;
        connector.complete(1, "a");
        core.step();
        connector.failing = -1;
        core.step();
        connector.complete(0, "a");
        run(core);
        assertThat(result.tokens).isEqualTo(expected(prompt(1, 21), 3));
        assertThat(second.computed.getFirst().start()).isEqualTo(8);
    }

    @Test
    void aLoadWithinTheStepThatFailsInOneRankIsRecomputed() {
        connector.loadTokens = 16;
        connector.failing = 1;
        connector.failingRank = 1;
        EngineCore core = core(CpuBinding.NONE);
        Result result = add(core, "a", prompt(1, 21), 3);
        run(core);
        assertThat(result.tokens).isEqualTo(expected(prompt(1, 21), 3));
    }

    @Test
    void blocksAreFreeWhenBothRanksHaveSent() {
        connector.delayed = true;
        EngineCore core = core(CpuBinding.NONE);
        add(core, "a", prompt(1, 9), 1);
        core.step();
        connector.sent(0, "a");
        core.step();
        assertThat(core.status(Optional.empty()).usedBlocks()).isEqualTo(3);
        connector.sent(1, "a");
        core.step();
        assertThat(core.status(Optional.empty()).usedBlocks()).isZero();
    }

    @Test
    void aRankThatFailsFailsTheStepsRequestsAndNoOther() {
        EngineCore core = core(CpuBinding.NONE);
        int[] bad = prompt(2, 9);
        bad[8] = Integer.MIN_VALUE;
        second.poison(Integer.MIN_VALUE);
        Result failed = add(core, "bad", bad, 3);
        run(core);
        assertThat(failed.reason).contains(FinishReason.ERROR);
        assertThat(failed.error.orElseThrow()).contains("poisoned token");
        Result good = add(core, "good", prompt(1, 9), 3);
        run(core);
        assertThat(good.tokens).isEqualTo(expected(prompt(1, 9), 3));
    }

    @Test
    void ranksArePinnedToTheirCores() {
        int core = CpuAffinity.current().nextSetBit(0);
        TreeSet<Integer> cores = new TreeSet<>(Set.of(core));
        EngineCore pinned = core(new CpuBinding(List.of(cores, cores)));
        add(pinned, "a", prompt(1, 9), 1);
        run(pinned);
        assertThat(connector.affinities.values()).hasSize(2).allMatch(BitSet.valueOf(new long[] {1L << core})::equals);
    }

    @Test
    void coresThatAreNotThereAreNamed() {
        TreeSet<Integer> cores = new TreeSet<>(Set.of(8000));
        assertThatThrownBy(() -> core(new CpuBinding(List.of(cores, cores))))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("cpu_bind: names cores [8000]; this process may run on");
        assertThat(connector.closed).isEqualTo(2);
        first.close();
        second.close();
    }

    @Test
    void bindingsAreReadAsVllmsAre() {
        assertThat(CpuBinding.parse("cpu_bind", "0-2|4,6-7").coresByRank())
                .containsExactly(new TreeSet<>(Set.of(0, 1, 2)), new TreeSet<>(Set.of(4, 6, 7)));
        assertThat(CpuBinding.parse("cpu_bind", "auto")).isEqualTo(CpuBinding.NONE);
        assertThat(CpuBinding.parse("cpu_bind", "all")).isEqualTo(CpuBinding.NONE);
        for (String wrong : List.of("", "0|", "a", "0--1", "-1")) {
            assertThatThrownBy(() -> CpuBinding.parse("cpu_bind", wrong))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageContaining("cpu_bind: is '" + wrong + "', must be");
        }
        assertThatThrownBy(() -> CpuBinding.parse("cpu_bind", "3-1")).hasMessageContaining("3-1 is empty");
        assertThatThrownBy(() -> new ParallelConfig(2, 2, CpuBinding.parse("cpu_bind", "0|1")))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("cpu_bind: has cores for 2 ranks");
    }

    /** Loads the first tokens of each prompt into both ranks, each when the test says so, and records the calling ranks. */
    private static final class RankedConnector implements KvConnector {
        record Load(String request, int[] tokens, int[] blockTable) {}

        record Plan(List<Load> loads) implements ConnectorMetadata {}

        record Hello(Rank rank) implements HandshakeMetadata {}

        boolean async;
        boolean delayed;
        int loadTokens;
        /** The index of the block that is not loaded. */
        volatile int failing = -1;

        int failingRank = -1;
        int closed;
        final Map<Rank, Set<String>> threads = new ConcurrentHashMap<>();
        final Map<Rank, BitSet> affinities = new ConcurrentHashMap<>();
        final List<ConnectorContext> contexts = Collections.synchronizedList(new ArrayList<>());
        Map<Rank, HandshakeMetadata> handshakes = Map.of();
        private final List<RankedWorker> workers = new ArrayList<>();

        void complete(int rank, String request) {
            RankedWorker worker = workers.get(rank);
            worker.fill(Objects.requireNonNull(worker.pending.remove(request)));
            worker.received.add(request);
        }

        void sent(int rank, String request) {
            workers.get(rank).sent.add(request);
        }

        @Override
        public Set<String> names() {
            return Set.of();
        }

        @Override
        public SchedulerConnector scheduler(ConnectorContext context) {
            contexts.add(context);
            return new SchedulerConnector() {
                private List<Load> loads = new ArrayList<>();

                @Override
                public void onHandshakeMetadata(Map<Rank, HandshakeMetadata> metadata) {
                    handshakes = metadata;
                }

                @Override
                public KvMatch match(KvRequest request, int computedTokens) {
                    return loadTokens > computedTokens
                            ? new KvMatch.Tokens(loadTokens - computedTokens, async)
                            : new KvMatch.None();
                }

                @Override
                public void onAllocated(KvRequest request, int[] table, int computedTokens, int externalTokens) {
                    if (externalTokens > 0) {
                        loads.add(new Load(request.id(), request.tokens(0, externalTokens), table));
                    }
                }

                @Override
                public ConnectorMetadata buildMetadata(ScheduledStep step) {
                    Plan plan = new Plan(loads);
                    loads = new ArrayList<>();
                    // Once is enough: recomputed tokens are not loaded again.
                    loadTokens = plan.loads.isEmpty() ? loadTokens : 0;
                    return plan;
                }

                @Override
                public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
                    return new Release(delayed, Optional.empty());
                }

                @Override
                public void close() {}
            };
        }

        @Override
        public WorkerConnector worker(ConnectorContext context, Rank rank) {
            contexts.add(context);
            RankedWorker worker = new RankedWorker(rank);
            workers.add(worker);
            return worker;
        }

        private final class RankedWorker implements WorkerConnector {
            private final Rank rank;
            private final Map<String, Load> pending = new HashMap<>();
            private final Set<String> sent = new HashSet<>();
            private final Set<String> received = new HashSet<>();
            private final Set<Integer> invalid = new HashSet<>();
            private Optional<KvCache> cache = Optional.empty();

            private RankedWorker(Rank rank) {
                this.rank = rank;
            }

            private void fill(Load load) {
                for (int position = 0; position < load.tokens.length; position++) {
                    int index = position / BLOCK_SIZE;
                    if (index == failing && (async || rank.tensor() == failingRank)) {
                        invalid.add(load.blockTable[index]);
                    } else {
                        for (int layer = 0; layer < 2; layer++) {
                            OracleRunner.write(
                                    cache.orElseThrow(), layer, load.blockTable, position, load.tokens[position]);
                        }
                    }
                }
            }

            private void note() {
                threads.computeIfAbsent(rank, _ -> ConcurrentHashMap.newKeySet())
                        .add(Thread.currentThread().getName());
                affinities.put(rank, CpuAffinity.current());
            }

            @Override
            public void register(KvCache registered) {
                cache = Optional.of(registered);
            }

            @Override
            public Optional<HandshakeMetadata> handshakeMetadata() {
                return Optional.of(new Hello(rank));
            }

            @Override
            public void startLoad(ConnectorMetadata metadata) {
                note();
                for (Load load : ((Plan) metadata).loads) {
                    if (async) {
                        pending.put(load.request, load);
                    } else {
                        fill(load);
                    }
                }
            }

            @Override
            public void waitForLayerLoad(int layer) {
                note();
            }

            @Override
            public void saveLayer(int layer) {
                note();
            }

            @Override
            public void waitForSave() {
                note();
            }

            @Override
            public WorkerReport report(Set<String> finished) {
                note();
                WorkerReport report = new WorkerReport(sent, received, invalid, List.of());
                sent.clear();
                received.clear();
                invalid.clear();
                return report;
            }

            @Override
            public void close() {
                synchronized (RankedConnector.this) {
                    closed++;
                }
            }
        }
    }
}
