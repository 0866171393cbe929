package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineListener;
import baton.engine.GenerationRequest;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import java.io.IOException;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** Two instances that have both roles: the pool of each is full of blocks that a request reads which waits for blocks of the other. */
class FullPoolsTest {
    /** A prompt of 25 has its blocks, not two. */
    private static final int BLOCKS = 40;

    private static LocalEngine start() throws IOException {
        KvTransferConfig transfer = KvTransferConfig.builder("NixlConnector", KvRole.BOTH)
                .extra("side_channel_port", 0)
                .extra("kv_lease_duration", 0.5)
                .loadFailurePolicy(LoadFailurePolicy.RECOMPUTE)
                .build();
        return LocalEngine.start(
                LLMTest.config()
                        .maxModelLen(512)
                        .numBlocks(BLOCKS)
                        .kvTransfer(transfer)
                        .build(),
                EngineListener.NONE);
    }

    private static CompletableFuture<RequestOutput> submit(
            LocalEngine engine, String id, int tokens, Optional<JsonFields> params) {
        GenerationRequest request = new GenerationRequest(
                id,
                LLMTest.prompt(Integer.parseInt(id), 400),
                SamplingParams.greedy(tokens),
                params,
                Optional.empty(),
                0);
        GenerationCollector collector = new GenerationCollector(request);
        engine.submit(request, collector);
        return collector.result();
    }

    private static RequestOutput result(CompletableFuture<RequestOutput> request) throws Exception {
        return request.get(120, TimeUnit.SECONDS);
    }

    private static CompletableFuture<RequestOutput> prefill(LocalEngine engine, String id) {
        return submit(
                engine, id, 1, Optional.of(JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\":true}")));
    }

    @Test
    void leasesThatTwoInstancesKeepForEachOtherEnd() throws Exception {
        try (LocalEngine one = start();
                LocalEngine other = start()) {
            CompletableFuture<RequestOutput> first = prefill(one, "1");
            CompletableFuture<RequestOutput> second = prefill(other, "2");
            Optional<JsonFields> ofFirst = result(first).kvTransferParams();
            Optional<JsonFields> ofSecond = result(second).kvTransferParams();
            CompletableFuture<RequestOutput> firstDecoded = submit(other, "1", 2, ofFirst);
            CompletableFuture<RequestOutput> secondDecoded = submit(one, "2", 2, ofSecond);
            assertThat(result(firstDecoded).completions().getFirst().error()).isEmpty();
            assertThat(result(secondDecoded).completions().getFirst().error()).isEmpty();
            LLMTest.await(() -> one.status().usedBlocks() + other.status().usedBlocks() == 0);
        }
    }
}
