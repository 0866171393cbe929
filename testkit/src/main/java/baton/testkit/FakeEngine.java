package baton.testkit;

import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvCache;
import baton.kv.KvFence;
import baton.kv.KvLayout;
import baton.kv.KvMemory;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.HiddenState;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.ReportMerger;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.SchedulerConnector.Release;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.kv.connector.SchedulerConnector.ScheduledRequest;
import baton.kv.connector.SchedulerConnector.ScheduledStep;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerMetadata;
import baton.kv.connector.WorkerReport;
import baton.kv.staging.StagedConnector;
import baton.transfer.Region;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.locks.LockSupport;
import java.util.function.IntConsumer;
import java.util.stream.IntStream;

/**
 * An engine's side of a connector, without a model and with the ranks of its context, in one thread: it allocates blocks, runs steps with
 * all calls in their order, and "computes" a key and value for each token that depend on that token and all tokens before it, as a model's
 * do. So the blocks that a connector moved can be checked byte by byte.
 */
public final class FakeEngine implements AutoCloseable {
    private static final long ASK_AGAIN_NANOS = 1_000_000;
    private static final int MOST_ASKED = 30_000;

    private IntConsumer afterLayer = _ -> {};
    /** Requests with discarded saves. */
    private final Set<String> discarded = new LinkedHashSet<>();

    private boolean connectorClosed;
    private final Arena arena = Arena.ofShared();
    private final KvLayout layout;
    private final SchedulerConnector scheduler;
    private final List<RankSide> ranks = new ArrayList<>();
    private final List<Integer> freeBlocks;
    /** Requests with blocks that a transfer uses. */
    private final Map<String, Running> transferring = new HashMap<>();

    private final Set<String> finished = new LinkedHashSet<>();
    private final ReportMerger merger;

    /** One rank's pool. Its first head is the model's {@code firstHead}. */
    private record RankSide(Rank rank, WorkerConnector worker, KvCache cache, MemorySegment bytes, int firstHead) {
        private MemorySegment block(int block) {
            long length = cache.layout().blockBytes();
            return bytes.asSlice(block * length, length);
        }
    }

    /** Where the pools of an engine are. */
    public enum PoolMemory {
        HOST,
        /** {@link RefusingMemory}. */
        DEVICE
    }

    /** An engine with pools in host memory. */
    public FakeEngine(KvConnector connector, ConnectorContext context, int blocks) {
        this(connector, context, blocks, PoolMemory.HOST);
    }

    public FakeEngine(KvConnector configured, ConnectorContext context, int blocks, PoolMemory pools) {
        this.layout = context.layout();
        KvConnector connector = configured;
        this.freeBlocks = new ArrayList<>(IntStream.range(0, blocks).boxed().toList());
        Map<Rank, HandshakeMetadata> handshakes = new HashMap<>();
        for (int tensor = 0; tensor < context.tensorParallelSize(); tensor++) {
            Rank rank = new Rank(0, tensor);
            MemorySegment bytes = arena.allocate(blocks * layout.blockBytes(), 64);
            KvCache cache = new KvCache(
                    switch (pools) {
                        case HOST -> new KvMemory.Host(bytes, Optional.empty());
                        case DEVICE -> new RefusingMemory(bytes).memory();
                    },
                    layout,
                    blocks,
                    IntStream.range(0, layout.layers())
                            .mapToObj(i -> "model.layers." + i + ".self_attn.attn")
                            .toList());
            if (tensor == 0) {
                connector = StagedConnector.where(
                        configured,
                        context.config(),
                        cache,
                        (of, length) ->
                                Region.allocate(of, length, "a staging pool").asPool());
            }
            WorkerConnector worker = connector.worker(context, rank);
            ranks.add(new RankSide(
                    rank,
                    worker,
                    cache,
                    bytes,
                    tensor * context.modelLayout().kvHeads() / context.tensorParallelSize()));
            worker.register(cache);
            worker.handshakeMetadata().ifPresent(own -> handshakes.put(rank, own));
        }
        this.merger = new ReportMerger(ranks.size());
        this.scheduler = connector.scheduler(context);
        if (!handshakes.isEmpty()) {
            scheduler.onHandshakeMetadata(handshakes);
        }
    }

    /** The first rank's pool. */
    public KvCache cache() {
        return ranks.getFirst().cache();
    }

    /** The bytes of the first rank's pool, also if it is a device's. */
    public MemorySegment bytes() {
        return ranks.getFirst().bytes();
    }

    /** The pools of all ranks. */
    public List<KvCache> caches() {
        return ranks.stream().map(RankSide::cache).toList();
    }

    public SchedulerConnector scheduler() {
        return scheduler;
    }

    /** The first rank's. */
    public WorkerConnector worker() {
        return ranks.getFirst().worker();
    }

    /** A request that has its blocks. */
    public static final class Running {
        private final KvRequest request;
        private final int[] blockTable;
        private final int localTokens;
        private final int externalTokens;
        private boolean over;
        private boolean awaitsReceived;
        private boolean awaitsSent;
        private int computedTokens;

        private Running(
                KvRequest request, int[] blockTable, int localTokens, int externalTokens, boolean loadsBetweenSteps) {
            this.request = request;
            this.blockTable = blockTable;
            this.localTokens = localTokens;
            this.externalTokens = externalTokens;
            this.computedTokens = localTokens + externalTokens;
            this.awaitsReceived = loadsBetweenSteps;
        }

        /** An asynchronous load is not over. */
        public boolean isLoading() {
            return awaitsReceived;
        }

        /** Its blocks have been freed. */
        public boolean isFreed() {
            return over && !awaitsReceived && !awaitsSent;
        }

        public KvRequest request() {
            return request;
        }

        /** All blocks, from the prompt's first token on. */
        public int[] blockTable() {
            return blockTable.clone();
        }

        /** Tokens that were in the prefix cache. */
        public int localTokens() {
            return localTokens;
        }

        /** Tokens that the connector matched. */
        public int externalTokens() {
            return externalTokens;
        }

        /** The blocks that the connector loads. */
        public Set<Integer> externalBlocks(int blockSize) {
            return Set.copyOf(
                    Arrays.stream(blockTable, localTokens / blockSize, (localTokens + externalTokens) / blockSize)
                            .boxed()
                            .toList());
        }

        /** Tokens of the prompt with KV in the pool. */
        public int computedTokens() {
            return computedTokens;
        }

        /** Tokens of the prompt that are still to be computed. */
        public int remainingTokens() {
            return request.promptLength() - computedTokens;
        }

        private void truncateAt(int block, int blockSize) {
            for (int i = 0; i < blockTable.length; i++) {
                if (blockTable[i] == block) {
                    computedTokens = Math.min(computedTokens, i * blockSize);
                }
            }
        }

        /** Takes loaded tokens back, as a scheduler does after a failed load. */
        public void truncate(int computed) {
            computedTokens = computed;
        }
    }

    /** A share of a step: {@code tokens} more tokens of a request. */
    public record Share(Running running, int tokens) {}

    /**
     * Announces and allocates a request.
     *
     * @param localTokens the prompt's tokens found in the prefix cache, whole blocks; they are filled in
     */
    public Running admit(KvRequest request, int localTokens) {
        scheduler.onNewRequest(request);
        return admitAgain(request, localTokens);
    }

    /** Allocates a request that was announced before, e.g. after a preemption. */
    public Running admitAgain(KvRequest request, int localTokens) {
        KvMatch match = awaitMatch(scheduler, request, localTokens);
        int external = switch (match) {
            case KvMatch.None _ -> 0;
            case KvMatch.Tokens tokens -> tokens.count();
            case KvMatch.Pending _ -> throw new IllegalStateException("the match is pending");
        };
        boolean async = match instanceof KvMatch.Tokens tokens && tokens.async();
        int[] blockTable = new int[layout.blocksFor(request.promptLength())];
        for (int i = 0; i < blockTable.length; i++) {
            blockTable[i] = freeBlocks.removeFirst();
        }
        Running running = new Running(request, blockTable, localTokens, external, async);
        if (async) {
            transferring.put(request.id(), running);
        }
        for (int layer = 0; layer < layout.layers(); layer++) {
            compute(running, layer, 0, localTokens);
        }
        scheduler.onAllocated(request, blockTable.clone(), localTokens, external);
        return running;
    }

    /** Asks for a match until it is not pending, as an engine does from step to step. */
    public static KvMatch awaitMatch(SchedulerConnector scheduler, KvRequest request, int localTokens) {
        KvMatch match = scheduler.match(request, localTokens);
        for (int asked = 1; match instanceof KvMatch.Pending && asked < MOST_ASKED; asked++) {
            LockSupport.parkNanos(ASK_AGAIN_NANOS);
            match = scheduler.match(request, localTokens);
        }
        return match;
    }

    /** Runs one step with a forward pass. */
    public WorkerReport step(Share... shares) {
        return step(Set.of(), shares);
    }

    /** Makes the request's logits not finite in each step from now on. */
    public void discardSavesOf(KvRequest request) {
        discarded.add(request.id());
    }

    /** @param then done from now on after each layer of each step, given its index */
    public void afterEachLayer(IntConsumer then) {
        afterLayer = then;
    }

    public WorkerReport step(Set<String> preempted, Share... shares) {
        List<ScheduledRequest> scheduled = Arrays.stream(shares)
                .map(share -> new ScheduledRequest(
                        share.running.request,
                        share.running.blockTable.clone(),
                        share.running.computedTokens,
                        share.tokens))
                .toList();
        Set<String> ended = takeFinished();
        ConnectorMetadata metadata = scheduler.buildMetadata(new ScheduledStep(scheduled, ended, preempted));
        ranks.forEach(rank -> rank.worker().startLoad(metadata));
        List<KvFence> launched = new ArrayList<>();
        for (int layer = 0; layer < layout.layers(); layer++) {
            for (RankSide rank : ranks) {
                rank.worker().layerLoaded(layer).await();
            }
            KvFence computed = new Layer(layer, shares);
            if (ranks.getFirst().cache().memory() instanceof KvMemory.Host) {
                computed.await();
            }
            for (RankSide rank : ranks) {
                rank.worker().saveLayer(layer, computed);
            }
            launched.add(computed);
            afterLayer.accept(layer);
        }
        launched.forEach(KvFence::await);
        for (RankSide rank : ranks) {
            if (rank.worker().wantsHidden()) {
                Arrays.stream(shares)
                        .filter(share -> share.running.remainingTokens() == share.tokens)
                        .forEach(share -> rank.worker().saveHidden(share.running.request.id(), hidden(share.running)));
            }
        }
        if (!discarded.isEmpty()) {
            ranks.forEach(rank -> rank.worker().discardSaves(Set.copyOf(discarded)));
        }
        ranks.forEach(rank -> rank.worker().waitForSave());
        WorkerReport report = report(ended);
        for (Share share : shares) {
            share.running.computedTokens += share.tokens;
        }
        return report;
    }

    /** A layer of a step, which a device computes as late as when its fence is awaited, by any thread. */
    private final class Layer implements KvFence {
        private final int layer;
        private final Share[] shares;

        @GuardedBy("this")
        private boolean computed;

        private Layer(int layer, Share... shares) {
            this.layer = layer;
            this.shares = shares;
        }

        @Override
        public synchronized boolean isPassed() {
            return computed;
        }

        @Override
        public synchronized void await() {
            if (!computed) {
                for (Share share : shares) {
                    int from = share.running.computedTokens;
                    compute(share.running, layer, from, from + share.tokens);
                }
                computed = true;
            }
        }
    }

    /** Whether the connector wants steps although nothing is to be computed. */
    public boolean hasPendingWork() {
        return scheduler.hasPendingWork();
    }

    /** Runs one step without a forward pass. */
    public WorkerReport idleStep() {
        Set<String> ended = takeFinished();
        ConnectorMetadata metadata = scheduler.buildMetadata(new ScheduledStep(List.of(), ended, Set.of()));
        ranks.forEach(rank -> rank.worker().startLoad(metadata));
        return report(ended);
    }

    /**
     * Runs steps without a forward pass until a request's asynchronous load is over.
     *
     * @return the reports of these steps, of all requests
     */
    public WorkerReport awaitLoad(Running running) {
        WorkerReport all = WorkerReport.NOTHING;
        for (int asked = 0; running.isLoading() && asked < MOST_ASKED; asked++) {
            if (asked > 0) {
                LockSupport.parkNanos(ASK_AGAIN_NANOS);
            }
            all = both(all, idleStep());
        }
        if (running.isLoading()) {
            throw new IllegalStateException("request " + running.request.id() + " is still loading");
        }
        return all;
    }

    private static WorkerReport both(WorkerReport first, WorkerReport second) {
        Set<String> sent = new LinkedHashSet<>(first.sent());
        sent.addAll(second.sent());
        Set<String> received = new LinkedHashSet<>(first.received());
        received.addAll(second.received());
        Set<Integer> invalid = new LinkedHashSet<>(first.invalidBlocks());
        invalid.addAll(second.invalidBlocks());
        List<Measurement> measurements = new ArrayList<>(first.measurements());
        measurements.addAll(second.measurements());
        Set<String> unverified = new LinkedHashSet<>(first.unverified());
        unverified.addAll(second.unverified());
        return new WorkerReport(sent, received, invalid, measurements, second.busy()).withUnverified(unverified);
    }

    private Set<String> takeFinished() {
        Set<String> taken = Set.copyOf(finished);
        finished.clear();
        return taken;
    }

    private WorkerReport report(Set<String> ended) {
        List<WorkerReport> reports = new ArrayList<>();
        Map<Rank, WorkerMetadata> metadata = new LinkedHashMap<>();
        for (RankSide rank : ranks) {
            WorkerReport own = rank.worker().report(ended);
            reports.add(own);
            own.metadata().ifPresent(of -> metadata.put(rank.rank(), of));
            for (int block : own.invalidBlocks()) {
                transferring.values().forEach(running -> running.truncateAt(block, layout.blockSize()));
            }
        }
        WorkerReport report = merger.merge(reports);
        scheduler.onStepDone(report, metadata);
        for (String id : report.received()) {
            Running running = known(id);
            if (!running.awaitsReceived) {
                throw new IllegalStateException("request " + id + " is received, which was not loaded");
            }
            running.awaitsReceived = false;
            running.computedTokens = Math.min(running.computedTokens, running.request.promptLength() - 1);
            settle(running);
        }
        for (String id : report.sent()) {
            Running running = known(id);
            if (!running.awaitsSent) {
                throw new IllegalStateException("request " + id + " is sent, of which no release was delayed");
            }
            running.awaitsSent = false;
            settle(running);
        }
        return report;
    }

    private Running known(String id) {
        Running running = transferring.get(id);
        if (running == null) {
            throw new IllegalStateException("a report about request " + id + ", which has no transfer");
        }
        return running;
    }

    private void settle(Running running) {
        if (!running.awaitsReceived && !running.awaitsSent) {
            transferring.remove(running.request.id());
            if (running.over) {
                free(running);
            }
        }
    }

    /** Tells the connector that a request goes on after its asynchronous load. */
    public void resume(Running running) {
        scheduler.onAllocated(running.request, running.blockTable.clone(), running.computedTokens, 0);
    }

    /**
     * Ends a request; its blocks are freed when no transfer uses them.
     *
     * @return the parameters for the answer
     */
    public Optional<JsonFields> end(Running running, RequestEnd how) {
        Release release = scheduler.onFinished(running.request, how, running.blockTable.clone());
        finished.add(running.request.id());
        running.over = true;
        running.awaitsSent = release.delayed();
        transferring.put(running.request.id(), running);
        settle(running);
        return release.kvTransferParams();
    }

    /** The answer to a request that has ended was lost. */
    public void loseAnswer(Running running) {
        if (running.awaitsSent) {
            scheduler.onAnswerLost(running.request.id());
        }
    }

    /** Blocks that requests have. */
    public int usedBlocks() {
        return cache().blocks() - freeBlocks.size();
    }

    /** Admits a request, waits for its load, runs the rest of its prompt in one step, and finishes it. */
    public WorkerReport prefill(KvRequest request) {
        Running running = admit(request, 0);
        WorkerReport loaded = awaitLoad(running);
        WorkerReport report = step(new Share(running, request.promptLength() - running.computedTokens));
        finish(running);
        return both(loaded, report);
    }

    /** Ends a request and frees its blocks, which are overwritten with rubbish. */
    public void finish(Running running) {
        scheduler.onFinished(running.request, RequestEnd.LENGTH, running.blockTable.clone());
        free(running);
    }

    /** Frees the blocks only, as a preemption does. */
    public void free(Running running) {
        for (int block : running.blockTable) {
            ranks.forEach(rank -> rank.block(block).fill((byte) 0xEE));
            freeBlocks.addLast(block);
        }
    }

    /** True if the request's tokens {@code [from, to)} have the KV in the pool that this engine would compute. */
    public boolean holds(Running running, int from, int to) {
        byte[] expected = new byte[(int) layout.entryBytes()];
        for (RankSide rank : ranks) {
            for (int layer = 0; layer < layout.layers(); layer++) {
                for (int head = 0; head < layout.kvHeads(); head++) {
                    long state = 0;
                    for (int position = 0; position < to; position++) {
                        state = mix(state, running.request.tokens(position, position + 1)[0]);
                        entry(state, layer, rank.firstHead() + head, expected);
                        if (position >= from
                                && MemorySegment.ofArray(expected).mismatch(slot(rank, running, layer, head, position))
                                        >= 0) {
                            return false;
                        }
                    }
                }
            }
        }
        return true;
    }

    /** The KV that this engine computes for a prompt's first tokens, one layer, as {@code [tokens, kv_heads, 2*head_dim]}. */
    public static byte[] packedLayer(KvLayout layout, int[] prompt, int tokens, int layer) {
        byte[] packed = new byte[(int) (layout.entryBytes() * layout.kvHeads() * tokens)];
        byte[] entry = new byte[(int) layout.entryBytes()];
        long state = 0;
        for (int position = 0; position < tokens; position++) {
            state = mix(state, prompt[position]);
            for (int head = 0; head < layout.kvHeads(); head++) {
                entry(state, layer, head, entry);
                System.arraycopy(entry, 0, packed, (position * layout.kvHeads() + head) * entry.length, entry.length);
            }
        }
        return packed;
    }

    /** Ends a request that waits and never had any blocks. */
    public void endWithoutBlocks(KvRequest request, RequestEnd how) {
        Release release = scheduler.onFinished(request, how, new int[0]);
        if (release.delayed()) {
            throw new IllegalStateException("request " + request.id() + " has no blocks that could be kept");
        }
        finished.add(request.id());
    }

    /** Ends the connector only, as when the process ends: the pool is left as it is. No further step is possible. */
    public void closeConnector() {
        if (!connectorClosed) {
            connectorClosed = true;
            ranks.forEach(rank -> rank.worker().close());
            scheduler.close();
        }
    }

    public boolean isConnectorClosed() {
        return connectorClosed;
    }

    @Override
    public void close() {
        closeConnector();
        arena.close();
    }

    private void compute(Running running, int layer, int from, int to) {
        byte[] entry = new byte[(int) layout.entryBytes()];
        for (RankSide rank : ranks) {
            for (int head = 0; head < layout.kvHeads(); head++) {
                long state = 0;
                for (int position = 0; position < to; position++) {
                    state = mix(state, running.request.tokens(position, position + 1)[0]);
                    if (position >= from) {
                        entry(state, layer, rank.firstHead() + head, entry);
                        slot(rank, running, layer, head, position).copyFrom(MemorySegment.ofArray(entry));
                    }
                }
            }
        }
    }

    /** The hidden state that this engine computes for the last token of a request's prompt: 8 numbers that depend on all tokens. */
    public static HiddenState hidden(Running running) {
        long state = 0;
        for (int token : running.request.tokens(0, running.request.promptLength())) {
            state = mix(state, token);
        }
        float[] values = new float[8];
        for (int i = 0; i < values.length; i++) {
            values[i] = (int) mix(state, i);
        }
        return new HiddenState(DType.F32, MemorySegment.ofArray(values));
    }

    private MemorySegment slot(RankSide rank, Running running, int layer, int head, int position) {
        int block = running.blockTable[position / layout.blockSize()];
        long at = block * layout.blockBytes() + layout.entryOffset(layer, head, position % layout.blockSize());
        return rank.bytes().asSlice(at, layout.entryBytes());
    }

    private static void entry(long state, int layer, int head, byte[] into) {
        MemorySegment bytes = MemorySegment.ofArray(into);
        for (int i = 0; i < into.length; i++) {
            bytes.set(ValueLayout.JAVA_BYTE, i, (byte) mix(mix(mix(state, layer), head), i));
        }
    }

    /** SplitMix64's finalizer over the state and one more number. */
    private static long mix(long state, long next) {
        long z = state + 0x9E3779B97F4A7C15L * (next + 1);
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }
}
