package baton.connectors.sglang;

import static org.assertj.core.api.Assertions.assertThat;

import baton.connectors.ConnectorRuntime;
import baton.connectors.SystemRuntime;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import java.time.Duration;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(300)
class SglangConnectorTest {
    private static final int BLOCK = 4;
    private static final Duration DEADLINE = Duration.ofMinutes(2);

    private static FakeEngine engine(KvRole role) {
        return engine(role, new SglangConnector());
    }

    private static FakeEngine engine(KvRole role, SglangConnector connector) {
        KvTransferConfig config = KvTransferConfig.builder("SglangConnector", role)
                .extra("bootstrap_port", 0)
                .build();
        KvLayout layout = new KvLayout(3, 2, 4, BLOCK, DType.F32);
        return new FakeEngine(
                connector,
                new ConnectorContext(config, new ModelFingerprint("fake", "m"), layout, Ticker.system()),
                64);
    }

    private static FakeKvRequest request(String id, JsonFields params) {
        return new FakeKvRequest(id, FakeKvRequest.counting(1, 10), BLOCK).withKvTransferParams(params);
    }

    /** The load is cancelled before the decode rank knows the prefill rank, which keeps the prompt for minutes. */
    @Test
    void aDecodeRequestThatEndsBeforeTheRegistryAnswersReleasesItsPrompt() throws Exception {
        try (FakeEngine prefill = engine(KvRole.PRODUCER);
                FakeEngine decode = engine(KvRole.CONSUMER)) {
            Running computed = computed(prefill);
            JsonFields params = prefill.end(computed, RequestEnd.LENGTH).orElseThrow();
            Running loading = decode.admit(request("d", params), 0);
            decode.end(loading, RequestEnd.ABORTED);
            await("the blocks are free", prefill, decode, () -> prefill.usedBlocks() + decode.usedBlocks() == 0);
        }
    }

    /** An answer may have arrived although its connection is counted as lost. */
    @Test
    void aPromptOnItsWayIsKeptThoughItsAnswerCountsAsLost() throws Exception {
        Queue<Runnable> held = new ConcurrentLinkedQueue<>();
        AtomicBoolean holds = new AtomicBoolean();
        ConnectorRuntime runtime = new SystemRuntime() {
            @Override
            public Executor background() {
                Executor threads = super.background();
                return task -> {
                    if (holds.get()) {
                        held.add(task);
                    } else {
                        threads.execute(task);
                    }
                };
            }
        };
        try (FakeEngine prefill = engine(KvRole.PRODUCER, new SglangConnector(runtime));
                FakeEngine decode = engine(KvRole.CONSUMER)) {
            Running computed = computed(prefill);
            JsonFields params = prefill.end(computed, RequestEnd.LENGTH).orElseThrow();
            holds.set(true);
            Running loading = decode.admit(request("d", params), 0);
            await("the copy of the pages and the connection are to begin", prefill, decode, () -> held.size() >= 2);
            prefill.loseAnswer(computed);
            for (int i = 0; i < 5; i++) {
                prefill.idleStep();
            }
            assertThat(prefill.usedBlocks()).isEqualTo(3);

            holds.set(false);
            held.forEach(task -> Thread.ofVirtual().start(task));
            await("the load is over", prefill, decode, () -> !loading.isLoading());
            assertThat(loading.computedTokens()).isGreaterThan(2 * BLOCK);
            assertThat(decode.holds(loading, 0, loading.computedTokens())).isTrue();
            decode.end(loading, RequestEnd.ABORTED);
            await("the blocks are free", prefill, decode, () -> prefill.usedBlocks() + decode.usedBlocks() == 0);
        }
    }

    private static Running computed(FakeEngine prefill) {
        Running computed =
                prefill.admit(request("p", JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}")), 0);
        prefill.step(new Share(computed, 10));
        return computed;
    }

    private static void await(String what, FakeEngine prefill, FakeEngine decode, BooleanSupplier condition) {
        Deadline deadline = Deadline.after(Ticker.system(), DEADLINE);
        while (!condition.getAsBoolean()) {
            assertThat(deadline.isOver()).as(what).isFalse();
            prefill.idleStep();
            decode.idleStep();
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(1));
        }
    }
}
