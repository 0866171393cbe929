package baton.connectors.sglang;

import static org.assertj.core.api.Assertions.assertThat;

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
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class SglangConnectorTest {
    private static final int BLOCK = 4;

    private static FakeEngine engine(KvRole role) {
        KvTransferConfig config = KvTransferConfig.builder("SglangConnector", role)
                .extra("bootstrap_port", 0)
                .build();
        KvLayout layout = new KvLayout(3, 2, 4, BLOCK, DType.F32);
        return new FakeEngine(
                new SglangConnector(),
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
            Running computed = prefill.admit(
                    request("p", JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}")), 0);
            prefill.step(new Share(computed, 10));
            JsonFields params = prefill.end(computed, RequestEnd.LENGTH).orElseThrow();
            Running loading = decode.admit(request("d", params), 0);
            decode.end(loading, RequestEnd.ABORTED);
            Deadline deadline = Deadline.after(Ticker.system(), Duration.ofSeconds(20));
            while (prefill.usedBlocks() > 0 || decode.usedBlocks() > 0) {
                assertThat(deadline.isOver()).as("the prompt is kept").isFalse();
                prefill.idleStep();
                decode.idleStep();
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(1));
            }
        }
    }
}
