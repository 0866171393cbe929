package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.FinishReason;
import baton.engine.GenerationEvent;
import baton.engine.GenerationEvent.Finished;
import baton.engine.GenerationEvent.Output;
import baton.engine.GenerationRequest;
import baton.engine.SamplingParams;
import baton.kv.ConfigException;
import baton.kv.FreePorts;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Whatever becomes of requests between two engines, no block is in use after the last of them, and none waits for a lease's end. */
@Timeout(value = 60, unit = TimeUnit.MINUTES)
class EndingsTest {
    private static final String HOST = "127.0.0.1";
    private static final int AT_ONCE = 8;
    /** Less than a lease, more than a busy machine needs. */
    private static final long BACK_SECONDS = 20;

    @TempDir
    Path directory;

    /** How a request ends. */
    enum Ending {
        DONE,
        STOPPED_AT_ONCE,
        LEFT_BEFORE_PREFILL,
        LEFT_IN_PREFILL,
        LEFT_WITH_ITS_ANSWER_UNREAD,
        LEFT_BEFORE_DECODE,
        LEFT_IN_LOAD,
        LEFT_IN_DECODE,
        TIMED_OUT,
        REFUSED
    }

    enum Connector {
        NIXL {
            @Override
            KvTransferConfig.Builder config(KvRole role, Site site) {
                return KvTransferConfig.builder("NixlConnector", role).extra("side_channel_port", 0);
            }
        },
        NIXL_PUSH {
            @Override
            KvTransferConfig.Builder config(KvRole role, Site site) {
                return KvTransferConfig.builder("NixlPushConnector", role).extra("side_channel_port", 0);
            }

            @Override
            boolean bothLegsAtOnce() {
                return true;
            }
        },
        MOONCAKE {
            @Override
            KvTransferConfig.Builder config(KvRole role, Site site) {
                return KvTransferConfig.builder("MooncakeConnector", role).extra("bootstrap_port", 0);
            }

            @Override
            boolean bothLegsAtOnce() {
                return true;
            }
        },
        MULTI {
            @Override
            KvTransferConfig.Builder config(KvRole role, Site site) {
                return KvTransferConfig.builder("MultiConnector", role)
                        .extra(
                                "connectors",
                                List.of(
                                        Map.of(
                                                "kv_connector",
                                                "NixlConnector",
                                                "kv_connector_extra_config",
                                                Map.of("side_channel_port", 0)),
                                        Map.of(
                                                "kv_connector",
                                                "OffloadingConnector",
                                                "kv_connector_extra_config",
                                                Map.of("cpu_bytes_to_use", 64 << 20))));
            }
        },
        P2P_NCCL {
            @Override
            KvTransferConfig.Builder config(KvRole role, Site site) {
                return KvTransferConfig.builder("P2pNcclConnector", role)
                        .ip(HOST)
                        .port(role == KvRole.PRODUCER ? site.firstPort : site.secondPort)
                        .extra("mem_pool_size_gb", 1);
            }

            @Override
            String id(Site site, int number) {
                return "___prefill_addr_%s:%d___decode_addr_%s:%d_%032x"
                        .formatted(HOST, site.firstPort, HOST, site.secondPort, number);
            }
        },
        PY_NCCL {
            @Override
            KvTransferConfig.Builder config(KvRole role, Site site) {
                return KvTransferConfig.builder("PyNcclConnector", role)
                        .ip(HOST)
                        .port(site.firstPort)
                        .parallelSize(2);
            }
        },
        LMCACHE_PD {
            @Override
            KvTransferConfig.Builder config(KvRole role, Site site) {
                return KvTransferConfig.builder("LMCacheConnectorV1", role)
                        .extra("lmcache.enable_pd", true)
                        .extra("lmcache.pd_role", role == KvRole.PRODUCER ? "sender" : "receiver")
                        .extra("lmcache.pd_buffer_size", 64 << 20)
                        .extra("lmcache.pd_buffer_device", "cpu")
                        .extra("lmcache.pd_peer_host", HOST)
                        .extra("lmcache.pd_peer_init_port", site.firstPort);
            }
        },
        LMCACHE {
            @Override
            KvTransferConfig.Builder config(KvRole role, Site site) {
                return KvTransferConfig.builder("LMCacheConnectorV1", KvRole.BOTH)
                        .extra("lmcache.chunk_size", 16)
                        .extra("lmcache.local_cpu", true)
                        .extra("lmcache.max_local_cpu_size", 0.05)
                        .extra("lmcache.remote_url", "fs://" + HOST + ":0" + site.directory);
            }
        },
        SHARED_STORAGE {
            @Override
            KvTransferConfig.Builder config(KvRole role, Site site) {
                return KvTransferConfig.builder("SharedStorageConnector", role)
                        .extra("shared_storage_path", site.directory.toString());
            }
        },
        OFFLOADING {
            @Override
            KvTransferConfig.Builder config(KvRole role, Site site) {
                return KvTransferConfig.builder("OffloadingConnector", KvRole.BOTH)
                        .extra("cpu_bytes_to_use", 64 << 20);
            }
        };

        abstract KvTransferConfig.Builder config(KvRole role, Site site);

        /** Whether the decode leg is sent with the prefill leg; else it is sent when that is answered. */
        boolean bothLegsAtOnce() {
            return false;
        }

        /** The common part of both legs' ids. */
        String id(Site site, int number) {
            return "%032x".formatted(number);
        }
    }

    record Site(Path directory, int firstPort, int secondPort) {}

    @ParameterizedTest
    @EnumSource
    void noBlocksAreInUseAfterTheLastRequest(Connector connector) throws Exception {
        live(connector, Integer.getInteger("tests.endings", 4));
    }

    @Tag("thorough")
    @ParameterizedTest
    @EnumSource
    void noBlocksAreInUseAfterTheLastOfManyRequests(Connector connector) throws Exception {
        live(connector, Integer.getInteger("tests.endings", 40));
    }

    private void live(Connector connector, int requests) throws Exception {
        Site site = new Site(directory, FreePorts.inARow(2), FreePorts.inARow(2));
        try (LocalEngine prefill = start(connector, KvRole.PRODUCER, site);
                LocalEngine decode = start(connector, KvRole.CONSUMER, site);
                Pair pair = new Pair(connector, site, prefill, decode)) {
            for (Ending ending : Ending.values()) {
                pair.end(ending, requests);
            }
            pair.checkTransferred();
        }
    }

    private static LocalEngine start(Connector connector, KvRole role, Site site) throws IOException {
        EngineConfigBuilder config = LLMTest.config()
                .maxNumSeqs(16)
                .kvTransfer(connector.config(role, site).build());
        return LocalEngine.start(config.build(), EngineListener.NONE);
    }

    /** One leg: its last event, and how its client leaves. */
    private static final class Leg {
        private final LocalEngine engine;
        private final GenerationRequest request;
        private final CompletableFuture<Finished> finished = new CompletableFuture<>();
        private final AtomicInteger tokens = new AtomicInteger();
        /** The client leaves when it has so many tokens. */
        private final int leavesAt;

        private Leg(
                LocalEngine engine, String id, int[] prompt, int maxTokens, int leavesAt, Optional<JsonFields> params) {
            this.engine = engine;
            this.leavesAt = leavesAt;
            this.request = new GenerationRequest(
                    id + "-%08x".formatted(ThreadLocalRandom.current().nextInt()),
                    prompt,
                    SamplingParams.builder()
                            .temperature(0)
                            .maxTokens(maxTokens)
                            .ignoreEos(true)
                            .build(),
                    params,
                    Optional.empty(),
                    0);
        }

        private Leg submit() {
            engine.submit(request, this::take);
            return this;
        }

        /** Runs on the engine's thread: requests made here come between this step and the next. */
        private void take(GenerationEvent event) {
            switch (event) {
                case Output output -> {
                    if (tokens.addAndGet(output.ids().length) == leavesAt) {
                        leave();
                    }
                }
                case Finished end -> finished.complete(end);
                case GenerationEvent.PromptLogprobs _ -> {}
            }
        }

        private void leave() {
            engine.abandon(request.id());
        }

        private Finished await() throws InterruptedException, ExecutionException, TimeoutException {
            return finished.get(60, TimeUnit.SECONDS);
        }
    }

    private static final class Pair implements AutoCloseable {
        private static final int NEVER = Integer.MAX_VALUE;

        private final Connector connector;
        private final Site site;
        private final LocalEngine prefill;
        private final LocalEngine decode;
        private final ExecutorService clients = Executors.newFixedThreadPool(AT_ONCE);
        private final AtomicInteger transferred = new AtomicInteger();
        private int requests;

        private Pair(Connector connector, Site site, LocalEngine prefill, LocalEngine decode) {
            this.connector = connector;
            this.site = site;
            this.prefill = prefill;
            this.decode = decode;
        }

        @Override
        public void close() {
            clients.shutdownNow();
        }

        private void end(Ending ending, int count) throws Exception {
            List<Future<?>> running = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                int number = requests++;
                running.add(clients.submit(() -> {
                    new Request(number).end(ending);
                    return true;
                }));
            }
            for (Future<?> each : running) {
                each.get(10, TimeUnit.MINUTES);
            }
            long last = System.nanoTime();
            while (used() > 0) {
                assertThat(System.nanoTime() - last)
                        .as(
                                "nanoseconds after %d requests that were %s, with %s at prefill and %s at decode",
                                count, ending, prefill.status(), decode.status())
                        .isLessThan(TimeUnit.SECONDS.toNanos(BACK_SECONDS));
                LockSupport.parkNanos(1_000_000);
            }
            System.out.printf(
                    "%s: %d requests %s, no block in use after %d ms%n",
                    connector, count, ending, (System.nanoTime() - last) / 1_000_000);
        }

        /** Checks that leased blocks were used. */
        private void checkTransferred() {
            if (connector != Connector.OFFLOADING) {
                assertThat(transferred).as("tokens handed over").hasPositiveValue();
            }
        }

        private int used() {
            return prefill.status().usedBlocks() + decode.status().usedBlocks();
        }

        private final class Request {
            private final int[] prompt;
            private final String id;
            private final Random random;

            private Request(int number) {
                this.random = new Random(number);
                this.prompt = LLMTest.prompt(number, 17 + random.nextInt(60));
                this.id = "cmpl-" + connector.id(site, number) + "-0";
            }

            private Leg prefillLeg(int leavesAt) {
                return new Leg(
                        prefill,
                        id,
                        prompt,
                        1,
                        leavesAt,
                        Optional.of(JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\":true}")));
            }

            private Leg decodeLeg(int maxTokens, int leavesAt, Optional<JsonFields> params) {
                return new Leg(decode, id, prompt, maxTokens, leavesAt, params);
            }

            private void pause() {
                LockSupport.parkNanos(random.nextInt(3_000_000));
            }

            private void end(Ending ending) throws Exception {
                switch (ending) {
                    case DONE ->
                        transferred.addAndGet(handOver(5, NEVER).usage().transferredTokens());
                    case STOPPED_AT_ONCE -> {
                        Finished _ = handOver(1, NEVER);
                    }
                    case LEFT_BEFORE_PREFILL -> leave(0);
                    case LEFT_IN_PREFILL -> leave(random.nextInt(3_000_000));
                    case LEFT_WITH_ITS_ANSWER_UNREAD -> {
                        Leg leg = prefillLeg(1).submit();
                        FinishReason reason = leg.await().reason();
                        assertThat(reason).isEqualTo(FinishReason.LENGTH);
                    }
                    case LEFT_BEFORE_DECODE -> leaveDecode(prefilled(), 0);
                    case LEFT_IN_LOAD -> leaveDecode(prefilled(), random.nextInt(3_000_000));
                    case TIMED_OUT ->
                        leaveDecode(
                                // The prefill leg never comes.
                                connector.bothLegsAtOnce() ? prefill.advertisedKvTransferParams() : prefilled(),
                                random.nextInt(30_000_000));
                    case LEFT_IN_DECODE -> {
                        Finished _ = handOver(200, 2);
                    }
                    case REFUSED -> {
                        Optional<JsonFields> params = prefilled();
                        try {
                            Leg _ = new Leg(decode, id, new int[decode.maxModelLen()], 1, NEVER, params).submit();
                            throw new AssertionError("a prompt without room for output is accepted");
                        } catch (ConfigException e) {
                            assertThat(e.field()).isEqualTo("prompt");
                        }
                    }
                }
            }

            private Optional<JsonFields> prefilled() throws Exception {
                return prefillLeg(NEVER).submit().await().kvTransferParams();
            }

            private Finished handOver(int maxTokens, int leavesAt) throws Exception {
                if (connector.bothLegsAtOnce() && random.nextBoolean()) {
                    Leg second = decodeLeg(maxTokens, leavesAt, prefill.advertisedKvTransferParams());
                    Leg first = prefillLeg(NEVER);
                    boolean secondFirst = random.nextBoolean();
                    (secondFirst ? second : first).submit();
                    pause();
                    (secondFirst ? first : second).submit();
                    first.await();
                    return expected(second, leavesAt);
                }
                return expected(decodeLeg(maxTokens, leavesAt, prefilled()).submit(), leavesAt);
            }

            private Finished expected(Leg leg, int leavesAt) throws Exception {
                Finished end = leg.await();
                assertThat(end.reason()).isEqualTo(leavesAt == NEVER ? FinishReason.LENGTH : FinishReason.ABORT);
                return end;
            }

            /** Its client, and the other leg's, leave after some time. */
            private void leave(int nanos) throws Exception {
                Leg first = prefillLeg(NEVER).submit();
                Optional<Leg> second = connector.bothLegsAtOnce() && random.nextBoolean()
                        ? Optional.of(decodeLeg(5, NEVER, prefill.advertisedKvTransferParams())
                                .submit())
                        : Optional.empty();
                LockSupport.parkNanos(nanos);
                first.leave();
                second.ifPresent(Leg::leave);
                first.await();
                if (second.isPresent()) {
                    second.get().await();
                }
            }

            private void leaveDecode(Optional<JsonFields> params, int nanos) throws Exception {
                Leg second = decodeLeg(5, NEVER, params).submit();
                LockSupport.parkNanos(nanos);
                second.leave();
                second.await();
            }
        }
    }
}
