package baton.connectors.nixl;

import static org.assertj.core.api.Assertions.assertThat;

import baton.connectors.nixl.MemoryNet.MemoryFabric;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Measurement;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import baton.testkit.VirtualTicker;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Two engines in one thread, one of which writes into the other's pool. */
class NixlPushConnectorTest {
    private static final int HEADS = 2;
    private static final JsonFields KEEP = JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}");
    private static final int PORT = 7100;

    private final VirtualTicker ticker = new VirtualTicker();
    private final MemoryNet net = new MemoryNet();
    private final List<Measurement> measured = new ArrayList<>();
    private final MemoryFabric prefillFabric = net.fabric();
    private final MemoryFabric decodeFabric = net.fabric();
    private FakeEngine prefill = engine(prefillFabric, "p", PORT, 1, 4);
    private FakeEngine decode = engine(decodeFabric, "d", 0, 1, 4);
    private int decodeBlockSize = 4;
    private int prefillBlockSize = 4;

    @BeforeEach
    void start() {
        ticker.advance(Duration.ofSeconds(100));
    }

    @AfterEach
    void nothingIsLeft() {
        decode.close();
        prefill.close();
        assertThat(prefillFabric.allocated()).isZero();
        assertThat(decodeFabric.allocated()).isZero();
    }

    private FakeEngine engine(MemoryFabric fabric, String id, int port, int tensorParallelSize, int blockSize) {
        KvTransferConfig config = KvTransferConfig.builder("NixlPushConnector", KvRole.BOTH)
                .engineId(id)
                .extra("side_channel_port", port)
                .build();
        return new FakeEngine(
                new NixlPushConnector(fabric),
                new ConnectorContext(
                        config,
                        new ModelFingerprint("fake", "00"),
                        new KvLayout(3, Math.max(1, HEADS / tensorParallelSize), 4, blockSize, DType.F32),
                        new KvLayout(3, HEADS, 4, blockSize, DType.F32),
                        tensorParallelSize,
                        1,
                        ticker),
                160 / blockSize);
    }

    private FakeKvRequest atPrefill(String id, int length) {
        return new FakeKvRequest(id, FakeKvRequest.counting(1, length), prefillBlockSize).withKvTransferParams(KEEP);
    }

    private FakeKvRequest atDecode(String id, int length) {
        return new FakeKvRequest(id, FakeKvRequest.counting(1, length), decodeBlockSize);
    }

    /** What a client that calls both instances at once knows. */
    private static JsonFields whereToLook(int tensorParallelSize) {
        return JsonFields.parse(
                "kv_transfer_params",
                "{\"do_remote_prefill\": true, \"remote_engine_id\": \"p\", \"remote_host\": \"localhost\", \"remote_port\": "
                        + PORT + ", \"tp_size\": " + tensorParallelSize + "}");
    }

    private void step(FakeEngine engine) {
        measured.addAll(engine.idleStep().measurements());
        measured.addAll(engine.scheduler().takeMeasurements());
    }

    private void steps(int count) {
        for (int i = 0; i < count; i++) {
            step(decode);
            step(prefill);
        }
    }

    private double counted(String name) {
        return measured.stream()
                .filter(each -> each.name().equals(name))
                .mapToDouble(Measurement::value)
                .sum();
    }

    private List<String> rejections() {
        return measured.stream()
                .filter(each -> each.name().equals("baton:kv_handoff_rejected"))
                .map(each -> String.valueOf(each.labels().get("cause")))
                .toList();
    }

    private void completes(Running running, int loaded) {
        for (int i = 0; running.isLoading(); i++) {
            assertThat(i).as("steps until the load is over").isLessThan(100);
            steps(1);
        }
        assertThat(running.computedTokens()).isEqualTo(loaded);
        assertThat(decode.holds(running, 0, loaded)).isTrue();
        decode.resume(running);
        decode.step(new Share(running, running.remainingTokens()));
        assertThat(decode.holds(running, 0, running.request().promptLength())).isTrue();
        decode.end(running, RequestEnd.LENGTH);
    }

    private void allBlocksAreBack() {
        steps(4);
        assertThat(decode.usedBlocks()).isZero();
        assertThat(prefill.usedBlocks()).isZero();
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 4, 5, 9, 32})
    void afterThePrefillTheBlocksArePushed(int length) {
        Running first = prefill.admit(atPrefill("p-1", length), 0);
        prefill.step(new Share(first, length));
        JsonFields params = prefill.end(first, RequestEnd.LENGTH).orElseThrow();
        assertThat(params.string("transfer_mode")).contains("push");
        step(prefill);
        Running running = decode.admit(atDecode("d-1", length).withKvTransferParams(params), 0);
        completes(running, length - 1);
        allBlocksAreBack();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
        assertThat(rejections()).isEmpty();
    }

    @ParameterizedTest
    @CsvSource({
        "1, 4, 1, 4",
        "2, 4, 1, 4",
        "1, 4, 2, 4",
        "4, 4, 2, 4",
        "2, 4, 4, 4",
        "1, 2, 1, 4",
        "1, 32, 1, 16",
        "2, 4, 1, 8"
    })
    void whileThePromptIsComputedEachLayerIsPushed(
            int prefillSize, int prefillBlocks, int decodeSize, int decodeBlocks) {
        decode.close();
        prefill.close();
        prefillBlockSize = prefillBlocks;
        decodeBlockSize = decodeBlocks;
        prefill = engine(prefillFabric, "p", PORT, prefillSize, prefillBlocks);
        decode = engine(decodeFabric, "d", 0, decodeSize, decodeBlocks);
        int length = 37;
        Running running =
                decode.admit(atDecode("cmpl-7-0-0badcafe", length).withKvTransferParams(whereToLook(prefillSize)), 0);
        assertThat(running.isLoading()).isTrue();
        steps(2);
        Running first = prefill.admit(atPrefill("cmpl-7-0-deadbeef", length), 0);
        for (int share : new int[] {5, 16, 8, 8}) {
            prefill.step(new Share(first, share));
            steps(1);
        }
        // Before the prefill instance has answered.
        for (int i = 0; running.isLoading(); i++) {
            assertThat(i).isLessThan(100);
            steps(1);
        }
        assertThat(prefill.end(first, RequestEnd.LENGTH)).isPresent();
        completes(running, length - 1);
        allBlocksAreBack();
        assertThat(rejections()).isEmpty();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @Test
    void whoAsksInTheMiddleOfAStepIsPushedLayersInTheSameStep() {
        List<Running> asked = new ArrayList<>();
        prefill.afterEachLayer(layer -> {
            if (layer == 0) {
                asked.add(decode.admit(atDecode("r", 9).withKvTransferParams(whereToLook(1)), 0));
                step(decode);
                step(decode);
            }
        });
        Running first = prefill.admit(atPrefill("r", 9), 0);
        measured.addAll(prefill.step(new Share(first, 9)).measurements());
        // The first two layers together, and the last.
        assertThat(measured.stream().filter(each -> each.name().equals("vllm:nixl_xfer_time")))
                .hasSize(2);
        prefill.end(first, RequestEnd.LENGTH);
        completes(asked.getFirst(), 8);
        allBlocksAreBack();
        assertThat(rejections()).isEmpty();
    }

    @Test
    void aRequestThatIsRefusedGivesTheBlocksBack() {
        Running first = prefill.admit(atPrefill("cmpl-r-0-deadbeef", 9), 0);
        prefill.step(new Share(first, 9));
        prefill.end(first, RequestEnd.LENGTH);
        step(prefill);
        decode.scheduler().onRefused("cmpl-r-0-0badcafe", whereToLook(1));
        allBlocksAreBack();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @Test
    void onlyWhatIsNotThereIsPushed() {
        Running running = decode.admit(atDecode("r", 14).withKvTransferParams(whereToLook(1)), 8);
        steps(2);
        Running first = prefill.admit(atPrefill("r", 14), 0);
        measured.addAll(prefill.step(new Share(first, 14)).measurements());
        prefill.end(first, RequestEnd.LENGTH);
        completes(running, 13);
        allBlocksAreBack();
        assertThat(counted("vllm:nixl_bytes_transferred"))
                .isEqualTo(2.0 * prefill.cache().layout().blockBytes());
    }

    /** The reader says so before the request that it is about has come. */
    @Test
    void nothingIsKeptForAReaderThatHasEverything() {
        Running running = decode.admit(atDecode("cmpl-r-0badcafe", 9).withKvTransferParams(whereToLook(1)), 8);
        assertThat(running.isLoading()).isFalse();
        decode.step(new Share(running, 1));
        decode.end(running, RequestEnd.LENGTH);
        steps(3);
        Running first = prefill.admit(atPrefill("cmpl-r-deadbeef", 9), 0);
        prefill.step(new Share(first, 9));
        prefill.end(first, RequestEnd.LENGTH);
        allBlocksAreBack();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
        assertThat(counted("baton:kv_unknown_notifications")).isZero();
    }

    @Test
    void aReaderOfNothingIsForgottenInTime() {
        Running running = decode.admit(atDecode("r", 9).withKvTransferParams(whereToLook(1)), 8);
        decode.step(new Share(running, 1));
        decode.end(running, RequestEnd.LENGTH);
        steps(3);
        assertThat(counted("baton:kv_unknown_notifications")).isZero();
        ticker.advance(Duration.ofSeconds(481));
        steps(1);
        assertThat(counted("baton:kv_unknown_notifications")).isEqualTo(1);
        allBlocksAreBack();
    }

    @Test
    void aPushOfAnotherPromptIsNotUsed() {
        FakeKvRequest other = new FakeKvRequest("r", FakeKvRequest.counting(500, 9), 4);
        Running running = decode.admit(other.withKvTransferParams(whereToLook(1)), 0);
        steps(2);
        Running first = prefill.admit(atPrefill("r", 9), 0);
        prefill.step(new Share(first, 9));
        prefill.end(first, RequestEnd.LENGTH);
        completes(running, 0);
        assertThat(rejections()).containsExactly("mismatch");
        allBlocksAreBack();
    }

    @Test
    void anAbortEndsThePushBeforeTheBlocksAreFreed() {
        Running running = decode.admit(atDecode("r", 9).withKvTransferParams(whereToLook(1)), 0);
        steps(2);
        Running first = prefill.admit(atPrefill("r", 9), 0);
        net.hold(true);
        prefill.step(new Share(first, 9));
        prefill.end(first, RequestEnd.LENGTH);
        step(prefill);
        decode.end(running, RequestEnd.ABORTED);
        step(decode);
        // The prefill instance has not said yet that it does not write any more.
        assertThat(running.isFreed()).isFalse();
        net.hold(false);
        allBlocksAreBack();
    }

    @Test
    void aPrefillThatIsAbortedEndsTheLoad() {
        Running running = decode.admit(atDecode("r", 9).withKvTransferParams(whereToLook(1)), 0);
        steps(2);
        Running first = prefill.admit(atPrefill("r", 9), 0);
        prefill.step(new Share(first, 4));
        prefill.end(first, RequestEnd.ABORTED);
        prefill.step();
        completes(running, 0);
        allBlocksAreBack();
    }

    @Test
    void aPromptThatLosesItsBlocksIsPushedAnew() {
        Running running = decode.admit(atDecode("r", 9).withKvTransferParams(whereToLook(1)), 0);
        steps(2);
        FakeKvRequest request = atPrefill("r", 9);
        Running first = prefill.admit(request, 0);
        prefill.step(new Share(first, 6));
        prefill.free(first);
        Running again = prefill.admitAgain(request, 0);
        prefill.step(Set.of("r"), new Share(again, 5));
        prefill.step(new Share(again, 4));
        prefill.end(again, RequestEnd.LENGTH);
        completes(running, 8);
        allBlocksAreBack();
        assertThat(rejections()).isEmpty();
    }

    @Test
    void aPushThatNeverComesEndsInTime() {
        Running running = decode.admit(atDecode("r", 9).withKvTransferParams(whereToLook(1)), 0);
        steps(2);
        ticker.advance(Duration.ofSeconds(479));
        steps(2);
        assertThat(running.isLoading()).isTrue();
        ticker.advance(Duration.ofSeconds(2));
        completes(running, 0);
        allBlocksAreBack();
    }

    @Test
    void aDeadPrefillInstanceEndsTheLoad() {
        Running running = decode.admit(atDecode("r", 9).withKvTransferParams(whereToLook(1)), 0);
        steps(2);
        net.kill(prefillFabric);
        step(decode);
        step(decode);
        assertThat(running.isLoading()).isFalse();
        decode.end(running, RequestEnd.ABORTED);
        assertThat(decode.usedBlocks()).isZero();
    }
}
