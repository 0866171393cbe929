package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineListener;
import baton.engine.FinishReason;
import baton.engine.GenerationRequest;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.FreePorts;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Requests that name peers which do not answer wait for them with a part of the blocks, and other requests go on. */
@Timeout(value = 5, unit = TimeUnit.MINUTES)
// The longest classes of the module begin first, so that others run beside them.
@Order(1)
class DeadPeersTest {
    private static final String HOST = "127.0.0.1";
    private static final int BLOCKS = 300;
    private static final int REQUESTS = 12;
    /** A prompt of 26 blocks with its output: twelve of them fill the pool. */
    private static final int LENGTH = 400;

    /** Ids of requests, in the order of their ends. */
    private final List<String> ended = new CopyOnWriteArrayList<>();

    enum Connector {
        NIXL {
            @Override
            KvTransferConfig.Builder config() {
                return KvTransferConfig.builder("NixlConnector", KvRole.BOTH)
                        .extra("side_channel_port", 0)
                        .extra("handshake_timeout", 1);
            }

            @Override
            String params(int port) {
                return "{\"do_remote_prefill\":true,\"remote_engine_id\":\"dead\",\"remote_request_id\":\"r\",\"remote_host\":\"%s\",\"remote_port\":%d,\"remote_block_ids\":[%s],\"tp_size\":1}"
                        .formatted(
                                HOST,
                                port,
                                List.of(
                                        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
                                        23, 24, 25));
            }
        },
        NIXL_PUSH {
            @Override
            KvTransferConfig.Builder config() {
                return KvTransferConfig.builder("NixlPushConnector", KvRole.BOTH)
                        .extra("side_channel_port", 0)
                        .extra("handshake_timeout", 1);
            }

            @Override
            String params(int port) {
                return "{\"do_remote_prefill\":true,\"remote_engine_id\":\"dead\",\"remote_host\":\"%s\",\"remote_port\":%d,\"tp_size\":1}"
                        .formatted(HOST, port);
            }
        },
        MOONCAKE {
            @Override
            KvTransferConfig.Builder config() {
                return KvTransferConfig.builder("MooncakeConnector", KvRole.CONSUMER)
                        .extra("handshake_timeout", 1);
            }

            @Override
            String params(int port) {
                return "{\"do_remote_prefill\":true,\"remote_engine_id\":\"dead\",\"remote_bootstrap_addr\":\"http://%s:%d\"}"
                        .formatted(HOST, port);
            }
        },
        P2P_NCCL {
            @Override
            KvTransferConfig.Builder config() throws IOException {
                return KvTransferConfig.builder("P2pNcclConnector", KvRole.CONSUMER)
                        .ip(HOST)
                        .port(FreePorts.inARow(1))
                        .extra("mem_pool_size_gb", 1)
                        .extra("load_timeout", 1);
            }

            @Override
            String params(int port) {
                return "{}";
            }

            @Override
            String id(int port, int number) {
                return "___prefill_addr_%s:%d___decode_addr_%s:1_%032x".formatted(HOST, port, HOST, number);
            }
        };

        abstract KvTransferConfig.Builder config() throws IOException;

        /** A reference to a peer at that port. */
        abstract String params(int port);

        String id(int port, int number) {
            return "%032x".formatted(number);
        }
    }

    @ParameterizedTest
    @EnumSource
    void otherRequestsGoOnWhileSomeWaitForPeersThatDoNotAnswer(Connector connector) throws Exception {
        KvTransferConfig transfer =
                connector.config().loadFailurePolicy(LoadFailurePolicy.FAIL).build();
        // Takes connections, and says nothing.
        try (ServerSocket silent = new ServerSocket(0, 1000, InetAddress.getLoopbackAddress());
                LocalEngine engine = LocalEngine.start(
                        LLMTest.config().numBlocks(BLOCKS).kvTransfer(transfer).build(), EngineListener.NONE)) {
            List<CompletableFuture<RequestOutput>> dead = new ArrayList<>();
            for (int i = 0; i < REQUESTS; i++) {
                dead.add(submit(
                        engine,
                        "cmpl-" + connector.id(silent.getLocalPort(), i) + "-0-0000000b",
                        i,
                        Optional.of(JsonFields.parse("kv_transfer_params", connector.params(silent.getLocalPort())))));
            }
            LLMTest.await(() -> engine.status().waitingForRemoteKv() > 0);
            CompletableFuture<RequestOutput> local = submit(engine, "local", 1000, Optional.empty());
            int most = 0;
            while (!dead.stream().allMatch(CompletableFuture::isDone)) {
                most = Math.max(most, engine.status().usedBlocks());
                LockSupport.parkNanos(1_000_000);
            }
            assertThat(local.get(120, TimeUnit.SECONDS).completions().getFirst().reason())
                    .isEqualTo(FinishReason.LENGTH);
            // A few peers at once have blocks, and each waits a second.
            assertThat(ended.indexOf("local")).isBetween(0, REQUESTS / 2);
            // The local request has as many as one of the others.
            assertThat(most).isLessThanOrEqualTo(BLOCKS / 4 + Math.ceilDiv(LENGTH + 2, 16));
            for (CompletableFuture<RequestOutput> each : dead) {
                assertThat(each.join().completions().getFirst().error().orElseThrow())
                        .contains("KV load failed");
            }
            LLMTest.await(() -> engine.status().usedBlocks() == 0);
        }
    }

    private CompletableFuture<RequestOutput> submit(
            LocalEngine engine, String id, int seed, Optional<JsonFields> params) {
        GenerationRequest request = new GenerationRequest(
                id, LLMTest.prompt(seed, LENGTH), SamplingParams.greedy(2), params, Optional.empty(), 0);
        GenerationCollector collector = new GenerationCollector(request);
        engine.submit(request, collector);
        return collector.result().whenComplete((_, _) -> ended.add(id));
    }
}
