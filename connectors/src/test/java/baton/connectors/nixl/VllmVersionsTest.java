package baton.connectors.nixl;

import static org.assertj.core.api.Assertions.assertThat;

import baton.connectors.nixl.NixlHandshake.Payload;
import baton.connectors.onesided.TransferMode;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.messages.SideChannel;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import baton.testkit.VirtualTicker;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** vLLM instances of two versions read blocks of one prefill instance. Each compares the hash with its own. */
@Timeout(300)
class VllmVersionsTest {
    private static final KvLayout MODEL = new KvLayout(6, 4, 32, 32, DType.F32);
    private static final String OLD = "0.32.0";
    private static final String NEW = "0.33.0";
    private static final int SIDE_CHANNEL = 5601;

    private final VirtualTicker ticker = new VirtualTicker();
    private final MemoryNet net = new MemoryNet(ticker);

    @AutoClose
    private final FakeEngine prefill = new FakeEngine(
            new NixlConnector(net.runtime()),
            new ConnectorContext(
                    KvTransferConfig.builder("NixlConnector", KvRole.PRODUCER)
                            .engineId("p")
                            .extra("side_channel_port", 5700)
                            .extra(
                                    "vllm_compat",
                                    Map.of(
                                            "version",
                                            List.of(OLD, NEW),
                                            "model",
                                            "tiny-ledger",
                                            "attn_backend_name",
                                            "CPU_ATTN",
                                            "side_channel_port",
                                            SIDE_CHANNEL))
                            .build(),
                    new ModelFingerprint("fake", "00"),
                    MODEL,
                    ticker),
            8);

    private int requests;

    @BeforeEach
    void start() throws Exception {
        decode("127.0.0.2", OLD);
        decode("127.0.0.3", NEW);
    }

    private static String hash(String version) {
        return VllmCompatibility.of(JsonFields.parse(
                        "vllm_compat",
                        "{\"version\": \"%s\", \"model\": \"tiny-ledger\", \"attn_backend_name\": \"CPU_ATTN\"}"
                                .formatted(version)))
                .hashes(MODEL, TransferMode.PULL)
                .getFirst();
    }

    /** The side channel of a vLLM instance, which gives a real one's recorded answers. */
    private void decode(String host, String version) throws Exception {
        byte[] metadata = Payload.read(VllmContractTest.recorded("payload")).metadata();
        SideChannel.Listener _ = net.sideChannel(host)
                .listen(
                        host,
                        SIDE_CHANNEL,
                        _ -> List.of(new Payload(hash(version), metadata).encode(), NixlHandshake.clock(1)));
    }

    /** The port that an answer to a prefill request names. */
    private int port(String params) {
        Running running = prefill.admit(
                new FakeKvRequest("r-" + requests++, FakeKvRequest.counting(1, 40), 32)
                        .withKvTransferParams(JsonFields.parse("kv_transfer_params", params)),
                0);
        prefill.step(new Share(running, 40));
        return prefill.end(running, RequestEnd.LENGTH)
                .orElseThrow()
                .integerAtLeast("remote_port", 1)
                .orElseThrow();
    }

    private String answered(String from, int port) throws Exception {
        return Payload.read(net.sideChannel(from)
                        .ask("localhost", port, List.of(NixlHandshake.question(Rank.FIRST)), Duration.ofSeconds(60))
                        .get(60, TimeUnit.SECONDS)
                        .getFirst())
                .compatibilityHash();
    }

    @Test
    void anInstanceAtAnotherHostIsKnownByItsOwnSideChannel() throws Exception {
        int port = port("{\"do_remote_decode\": true}");
        assertThat(port).isEqualTo(5700);
        assertThat(answered("127.0.0.3", port)).isEqualTo(hash(NEW));
        assertThat(answered("127.0.0.2", port)).isEqualTo(hash(OLD));
        assertThat(answered("127.0.0.3", port)).isEqualTo(hash(NEW));
        assertThat(answered("127.0.0.4", port)).as("of none").isEqualTo(hash(OLD));
    }

    /** The router sends the version of the decode instance. */
    @Test
    void instancesAtOneHostAreKnownByThePortThatTheirReferencesName() throws Exception {
        int old = port("{\"do_remote_decode\": true, \"remote_vllm_version\": \"0.32.0\"}");
        int upgraded = port("{\"do_remote_decode\": true, \"remote_vllm_version\": \"0.33.0\"}");
        assertThat(List.of(old, upgraded)).containsExactly(5701, 5702);
        assertThat(answered("127.0.0.1", upgraded)).isEqualTo(hash(NEW));
        assertThat(answered("127.0.0.1", old)).isEqualTo(hash(OLD));
        assertThat(answered("127.0.0.3", old)).isEqualTo(hash(OLD));
        assertThat(port("{\"do_remote_decode\": true, \"remote_vllm_version\": \"0.1\"}"))
                .isEqualTo(5700);
    }
}
