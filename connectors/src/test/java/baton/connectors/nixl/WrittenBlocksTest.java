package baton.connectors.nixl;

import static org.assertj.core.api.Assertions.assertThat;

import baton.connectors.nixl.MemoryNet.MemoryRuntime;
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
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedClass;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.node.ObjectNode;

/** Two engines in one thread, one of which writes into the other's pool, whichever of both connectors each of them has. */
@ParameterizedClass(name = "{0} to {1}")
@CsvSource({
    "NixlConnector, NixlConnector",
    "NixlConnector, NixlPushConnector",
    "NixlPushConnector, NixlConnector",
    "NixlPushConnector, NixlPushConnector"
})
class WrittenBlocksTest {
    private static final Duration LEASE = Duration.ofSeconds(31);
    private static final int HEADS = 2;
    private static final JsonFields KEEP = JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}");
    private static final int PORT = 7100;

    private final VirtualTicker ticker = new VirtualTicker();
    private final MemoryNet net = new MemoryNet(ticker);
    private final List<Measurement> measured = new ArrayList<>();
    private final List<Measurement> measuredAtPrefill = new ArrayList<>();
    private final MemoryRuntime prefillRuntime = net.runtime();
    private final MemoryRuntime decodeRuntime = net.runtime();
    private final String prefillConnector;
    private final String decodeConnector;
    private FakeEngine prefill;
    private FakeEngine decode;
    private int decodeBlockSize = 4;
    private int prefillBlockSize = 4;
    private boolean bidirectional;

    WrittenBlocksTest(String prefillConnector, String decodeConnector) {
        this.prefillConnector = prefillConnector;
        this.decodeConnector = decodeConnector;
        prefill = prefill(1, 4);
        decode = decode(1, 4);
    }

    private FakeEngine prefill(int tensorParallelSize, int blockSize) {
        return engine(prefillConnector, prefillRuntime, "p", PORT, tensorParallelSize, blockSize);
    }

    private FakeEngine decode(int tensorParallelSize, int blockSize) {
        return engine(decodeConnector, decodeRuntime, "d", 0, tensorParallelSize, blockSize);
    }

    @BeforeEach
    void start() {
        ticker.advance(Duration.ofSeconds(100));
    }

    @AfterEach
    void nothingIsLeft() {
        decode.close();
        prefill.close();
        assertThat(prefillRuntime.allocated()).isZero();
        assertThat(decodeRuntime.allocated()).isZero();
    }

    private FakeEngine engine(
            String connector, MemoryRuntime runtime, String id, int port, int tensorParallelSize, int blockSize) {
        KvTransferConfig config = KvTransferConfig.builder(connector, KvRole.BOTH)
                .engineId(id)
                .extra("side_channel_port", port)
                .extra("bidirectional_kv_xfer", bidirectional)
                .extra("kv_recompute_threshold", 0)
                .build();
        return new FakeEngine(
                connector.equals("NixlConnector")
                        ? new NixlConnector(runtime, net::answered)
                        : new NixlPushConnector(runtime, net::answered),
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

    /** The parameters of a client that calls both instances at once. */
    private static JsonFields whereToLook(int tensorParallelSize) {
        return JsonFields.parse(
                "kv_transfer_params",
                "{\"do_remote_prefill\": true, \"remote_engine_id\": \"p\", \"remote_host\": \"localhost\", \"remote_port\": "
                        + PORT + ", \"tp_size\": " + tensorParallelSize + "}");
    }

    private void step(FakeEngine engine) {
        List<Measurement> taken = new ArrayList<>(engine.idleStep().measurements());
        taken.addAll(engine.scheduler().takeMeasurements());
        measured.addAll(taken);
        if (engine == prefill) {
            measuredAtPrefill.addAll(taken);
        }
    }

    private void steps(int count) {
        for (int i = 0; i < count; i++) {
            step(decode);
            step(prefill);
        }
    }

    private double counted(String name) {
        return Measured.count(name, measured);
    }

    private List<String> rejections() {
        return Measured.rejections(measured);
    }

    private void loads(Running running) {
        for (int i = 0; running.isLoading(); i++) {
            assertThat(i).as("steps until the load is over").isLessThan(100);
            steps(1);
        }
    }

    private void completes(Running running, int loaded) {
        loads(running);
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
        assertThat(net.permits(decodeRuntime)).isZero();
    }

    private void allBlocksAreBackAndNothingIsRejected() {
        allBlocksAreBack();
        assertThat(rejections()).isEmpty();
    }

    /** A request of 9 tokens, sent to the decode instance before the prefill instance has answered. */
    private Running atOnce(String id) {
        return decode.admit(atDecode(id, 9).withKvTransferParams(whereToLook(1)), 0);
    }

    /** The same, once the prefill instance knows where to push. */
    private Running registered(String id) {
        Running running = atOnce(id);
        steps(2);
        return running;
    }

    private Running prefilling(String id) {
        return prefill.admit(atPrefill(id, 9), 0);
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 4, 5, 9, 32})
    void namedBlocksArePulledOrPushedByTheDecodeInstancesConnector(int length) {
        Running first = prefill.admit(atPrefill("p-1", length), 0);
        prefill.step(new Share(first, length));
        JsonFields params = prefill.end(first, RequestEnd.LENGTH).orElseThrow();
        assertThat(params.string("transfer_mode"))
                .contains(prefillConnector.equals("NixlPushConnector") ? "push" : "pull");
        step(prefill);
        Running running = decode.admit(atDecode("d-1", length).withKvTransferParams(params), 0);
        completes(running, length - 1);
        allBlocksAreBack();
        // Who moves bytes counts them.
        double bytes = length == 1
                ? 0
                : Math.ceilDiv(length, 4) * prefill.cache().layout().blockBytes();
        assertThat(counted("vllm:nixl_bytes_transferred")).isEqualTo(bytes);
        assertThat(Measured.count("vllm:nixl_bytes_transferred", measuredAtPrefill))
                .isEqualTo(decodeConnector.equals("NixlPushConnector") ? bytes : 0);
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
    void eachLayerIsPushedWhileThePromptIsComputed(
            int prefillSize, int prefillBlocks, int decodeSize, int decodeBlocks) {
        decode.close();
        prefill.close();
        prefillBlockSize = prefillBlocks;
        decodeBlockSize = decodeBlocks;
        prefill = prefill(prefillSize, prefillBlocks);
        decode = decode(decodeSize, decodeBlocks);
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
        loads(running);
        assertThat(prefill.end(first, RequestEnd.LENGTH)).isPresent();
        completes(running, length - 1);
        allBlocksAreBackAndNothingIsRejected();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @Test
    void aPushRegisteredInTheMiddleOfAStepGetsLayersInTheSameStep() {
        List<Running> asked = new ArrayList<>();
        prefill.afterEachLayer(layer -> {
            if (layer == 0) {
                asked.add(atOnce("r"));
                step(decode);
                step(decode);
            }
        });
        Running first = prefilling("r");
        measured.addAll(prefill.step(new Share(first, 9)).measurements());
        // The first two layers together, and the last.
        assertThat(measured.stream().filter(each -> each.name().equals("vllm:nixl_xfer_time")))
                .hasSize(2);
        prefill.end(first, RequestEnd.LENGTH);
        completes(asked.getFirst(), 8);
        allBlocksAreBackAndNothingIsRejected();
    }

    /** The ids of all requests share their part that is not random. */
    @Test
    void aReferenceThatNamesBlocksNeverGetsThoseOfAnotherRequestPushed() {
        Running pulled = prefilling("cmpl-r-0-deadbeef");
        prefill.step(new Share(pulled, 9));
        JsonFields named = prefill.end(pulled, RequestEnd.LENGTH).orElseThrow();
        Running other = prefill.admit(
                new FakeKvRequest("cmpl-r-0-fadedcab", FakeKvRequest.counting(500, 9), 4).withKvTransferParams(KEEP),
                0);
        prefill.step(new Share(other, 9));
        JsonFields othersNamed = prefill.end(other, RequestEnd.LENGTH).orElseThrow();
        step(prefill);

        Running running = decode.admit(
                new FakeKvRequest("cmpl-r-0-0badcafe", FakeKvRequest.counting(500, 9), 4)
                        .withKvTransferParams(othersNamed),
                0);
        completes(running, 8);
        steps(4);
        assertThat(prefill.usedBlocks()).isEqualTo(3);
        assertThat(pulled.isFreed()).isFalse();
        assertThat(other.isFreed()).isTrue();
        completes(decode.admit(atDecode("cmpl-r-0-0badcafe", 9).withKvTransferParams(named), 0), 8);
        allBlocksAreBackAndNothingIsRejected();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @Test
    void ofSeveralSamplesOneIsPushed() {
        Running one = atOnce("cmpl-r-0-0badcafe-0");
        Running two = atOnce("cmpl-r-0-0badcafe-1");
        assertThat(one.isLoading()).isTrue();
        assertThat(two.isLoading()).isFalse();
        steps(2);
        prefills("cmpl-r-0-deadbeef");
        completes(one, 8);
        completes(two, 0);
        allBlocksAreBack();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @Test
    void anEarlierTurnIsPulledThoughTheNextOneIsPushed() {
        decode.close();
        prefill.close();
        bidirectional = true;
        prefill = prefill(1, 4);
        decode = decode(1, 4);
        Running turn = decode.admit(atDecode("r-1", 17).withKvTransferParams(whereToLook(1)), 0);
        Running first = prefill.admit(atPrefill("r-1", 17), 0);
        prefill.step(new Share(first, 17));
        prefill.end(first, RequestEnd.LENGTH);
        loads(turn);
        decode.resume(turn);
        decode.step(new Share(turn, turn.remainingTokens()));
        ObjectNode earlier = decode.end(turn, RequestEnd.STOPPED).orElseThrow().toJson();
        steps(1);
        earlier.put("do_remote_decode", true).put("do_remote_prefill", false);
        Running second = prefill.admit(
                atPrefill("r-2", 25).withKvTransferParams(JsonFields.of("kv_transfer_params", earlier)), 0);
        assertThat(second.isLoading()).isTrue();
        Running next = decode.admit(atDecode("r-2", 25).withKvTransferParams(whereToLook(1)), 0);
        loads(second);
        prefill.resume(second);
        assertThat(second.computedTokens()).isEqualTo(16);
        prefill.step(new Share(second, second.remainingTokens()));
        prefill.end(second, RequestEnd.LENGTH);
        loads(next);
        decode.resume(next);
        assertThat(next.computedTokens()).isEqualTo(24);
        assertThat(decode.holds(next, 0, 24)).isTrue();
        decode.end(next, RequestEnd.ABORTED);
        allBlocksAreBackAndNothingIsRejected();
    }

    @Test
    void aRefusedRequestCompletesItsPushLease() {
        prefills("cmpl-r-0-deadbeef");
        step(prefill);
        decode.scheduler().onRefused("cmpl-r-0-0badcafe", whereToLook(1));
        allBlocksAreBack();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    /** A peer that is not Baton's gets vLLM's notifications only. */
    @Test
    void aVllmPeerGetsACompletionForBlocksThatAreNotNeeded() {
        net.vllmAnswers(true);
        prefills("cmpl-r-0-deadbeef");
        step(prefill);
        decode.scheduler().onRefused("cmpl-r-0-0badcafe", whereToLook(1));
        allBlocksAreBack();
        assertThat(net.notified()).containsExactly("cmpl-r-0:1");
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @Test
    void aVllmPeerGetsOnlyVllmsNotifications() {
        net.vllmAnswers(true);
        FakeKvRequest queued = atPrefill("cmpl-r-0-deadbeef", 9);
        prefill.scheduler().onNewRequest(queued);
        Running running = registered("cmpl-r-0-0badcafe");
        heartbeats(2);
        decode.end(running, RequestEnd.ABORTED);
        prefill.scheduler().onFinished(queued, RequestEnd.ABORTED, new int[0]);
        steps(2);
        ticker.advance(Duration.ofSeconds(31));
        allBlocksAreBack();
        assertThat(net.notified())
                .isNotEmpty()
                .allMatch(text ->
                        text.startsWith("PUSH_REG:") || text.equals("HB:cmpl-r-0") || text.equals("cmpl-r-0:1"));
    }

    /** Both sides take the other for a vLLM instance, so that each does its part of vLLM's push. */
    @ParameterizedTest
    @CsvSource({
        "cmpl-r-0, '', true",
        "cmpl-r-0, '', false",
        "cmpl-r-0, -0, true",
        "chatcmpl-job-12345678, '', true",
        "chatcmpl-job-12345678, '', false"
    })
    void blocksArePushedBetweenVllmAndBaton(String id, String sample, boolean registeredFirst) {
        net.withoutPermits();
        net.vllmAnswers(true);
        Optional<Running> early = registeredFirst ? Optional.of(atOnce(id + "-0badcafe" + sample)) : Optional.empty();
        steps(2);
        Running first = prefilling(id + "-deadbeef");
        prefill.step(new Share(first, 9));
        prefill.end(first, RequestEnd.LENGTH);
        step(prefill);
        Running running = early.orElseGet(() -> atOnce(id + "-0badcafe" + sample));
        completes(running, 8);
        // vLLM's decode instance does not say that it has the blocks.
        allBlocksAreBack();
        assertThat(first.isFreed()).isTrue();
        assertThat(net.notified())
                .filteredOn(text -> !text.startsWith("HB:"))
                .hasSize(2)
                .anyMatch(text ->
                        text.startsWith("PUSH_REG:") && text.contains(id + "-0badcafe") && !text.contains("-0badcafe-"))
                .anyMatch(text -> text.equals(id + "-0badcafe:1"));
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
        assertThat(counted("baton:kv_unverified_loads")).isEqualTo(1);
    }

    @Test
    void aPushFromVllmThatNeverComesEndsAtTheTimeLimitsOfBothSides() {
        net.withoutPermits();
        net.vllmAnswers(true);
        Running running = atOnce("cmpl-r-0-0badcafe");
        for (int i = 0; running.isLoading() && i < 40; i++) {
            ticker.advance(Duration.ofSeconds(60));
            steps(1);
        }
        assertThat(running.isLoading()).isFalse();
        decode.end(running, RequestEnd.ABORTED);
        steps(2);
        allBlocksAreBack();
    }

    /** It stays where it was written to, though the other one's reader has no need. */
    @Test
    void aRefusedSampleLeavesTheOtherSampleItsPush() {
        Running one = atOnce("cmpl-r-0-0badcafe-0");
        decode.scheduler().onRefused("cmpl-r-0-0badcafe-1", whereToLook(1));
        steps(2);
        Running first = prefilling("cmpl-r-0-deadbeef");
        net.hold(true);
        prefill.step(new Share(first, 9));
        prefill.end(first, RequestEnd.LENGTH);
        steps(2);
        assertThat(first.isFreed()).isFalse();
        net.hold(false);
        completes(one, 8);
        allBlocksAreBack();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aPushRegisteredAfterTheLeaseEndedFails(boolean aborted) {
        Running first = prefilling("cmpl-r-0-deadbeef");
        prefill.step(new Share(first, 9));
        prefill.end(first, aborted ? RequestEnd.ABORTED : RequestEnd.LENGTH);
        step(prefill);
        ticker.advance(Duration.ofSeconds(31));
        step(prefill);
        assertThat(first.isFreed()).isTrue();
        completes(atOnce("cmpl-r-0-0badcafe"), 0);
        // The next attempt is another matter, and so are others.
        Running again = atOnce("cmpl-r-0-fadedcab");
        Running other = atOnce("cmpl-s-0-fadedcab");
        steps(4);
        assertThat(again.isLoading()).isTrue();
        assertThat(other.isLoading()).isTrue();
        for (String id : List.of("cmpl-s-0-deadbeef", "cmpl-r-0-fadedace")) {
            Running second = prefilling(id);
            prefill.step(new Share(second, 9));
            prefill.end(second, RequestEnd.LENGTH);
        }
        completes(again, 8);
        completes(other, 8);
        allBlocksAreBack();
    }

    @Test
    void blocksOfACachedPrefixAreNotPushed() {
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
    void aCompletionBeforeTheLeaseEndsItAtOnce() {
        Running running = decode.admit(atDecode("cmpl-r-0badcafe", 9).withKvTransferParams(whereToLook(1)), 8);
        assertThat(running.isLoading()).isFalse();
        decode.step(new Share(running, 1));
        decode.end(running, RequestEnd.LENGTH);
        steps(3);
        prefills("cmpl-r-deadbeef");
        allBlocksAreBack();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
        assertThat(counted("baton:kv_unknown_notifications")).isZero();
    }

    @Test
    void aCompletionWithoutALeaseIsForgottenInTime() {
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
        prefills("r");
        completes(running, 0);
        assertThat(rejections()).containsExactly("mismatch");
        allBlocksAreBack();
    }

    /** Both are about the same instance, and so over the same connection. */
    @Test
    void aHandshakeThatFailsHalfwayEndsNoOtherLoad() {
        Running running = registered("r-1");
        ticker.advance(Duration.ofMillis(1));
        Running misled = decode.admit(atDecode("r-2", 9).withKvTransferParams(whereToLook(2)), 0);
        completes(misled, 0);
        assertThat(running.isLoading()).isTrue();
        prefills("r-1");
        completes(running, 8);
        allBlocksAreBack();
    }

    @Test
    void anAbortEndsThePushAtOnceAndALateWriteChangesNothing() {
        Running running = registered("r");
        Running first = prefilling("r");
        net.hold(true);
        prefill.step(new Share(first, 9));
        prefill.end(first, RequestEnd.LENGTH);
        step(prefill);
        assertThat(net.waiting()).isPositive();
        decode.end(running, RequestEnd.ABORTED);
        step(decode);
        assertThat(running.isFreed()).isTrue();
        decode.cache().host().fill((byte) 0x55);
        net.hold(false);
        assertThat(isUntouched()).isTrue();
        allBlocksAreBack();
        assertThat(isUntouched()).isTrue();
    }

    /** Since the decode pool was filled with this. */
    private boolean isUntouched() {
        MemorySegment pool = decode.cache().host();
        return pool.get(ValueLayout.JAVA_BYTE, 0) == 0x55
                && pool.asSlice(1).mismatch(pool.asSlice(0, pool.byteSize() - 1)) == -1;
    }

    /** It has the blocks, and the instruction about them comes once more. */
    @Test
    void aWriteThatComesAgainChangesNothing() {
        Running running = registered("r");
        prefills("r");
        loads(running);
        assertThat(decode.holds(running, 0, 8)).isTrue();
        prefill.cache().host().fill((byte) 0x33);
        assertThat(net.repeatWrites()).isPositive();
        assertThat(decode.holds(running, 0, 8)).isTrue();
        decode.resume(running);
        decode.end(running, RequestEnd.ABORTED);
        allBlocksAreBack();
    }

    @Test
    void withoutPermitsAnAbortEndsThePushBeforeTheBlocksAreFreed() {
        net.withoutPermits();
        Running running = registered("r");
        Running first = prefilling("r");
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
    void withoutPermitsAPushThatIsNeverAnsweredEndsInTime() {
        net.withoutPermits();
        Running running = registered("r");
        net.loseMessages(true);
        decode.end(running, RequestEnd.ABORTED);
        step(decode);
        ticker.advance(Duration.ofSeconds(400));
        steps(2);
        assertThat(running.isFreed()).isFalse();
        ticker.advance(Duration.ofMinutes(2));
        allBlocksAreBack();
    }

    @Test
    void aLostEndOfAPushIsRepeatedAfterReRegistration() {
        Running running = registered("r");
        net.loseMessages(true);
        prefills("r");
        steps(2);
        net.loseMessages(false);
        assertThat(running.isLoading()).isTrue();
        ticker.advance(Duration.ofSeconds(6));
        completes(running, 8);
        allBlocksAreBackAndNothingIsRejected();
    }

    @Test
    void aLostFailureOfAPushIsRepeatedAfterReRegistration() {
        Running running = registered("r");
        Running first = prefilling("r");
        prefill.step(new Share(first, 4));
        net.loseMessages(true);
        prefill.end(first, RequestEnd.ABORTED);
        steps(2);
        net.loseMessages(false);
        ticker.advance(Duration.ofSeconds(6));
        completes(running, 0);
        allBlocksAreBack();
    }

    @Test
    void aPushWithALostCancellationIsForgotten() {
        Running running = registered("r");
        net.loseMessages(true);
        decode.end(running, RequestEnd.ABORTED);
        steps(2);
        net.loseMessages(false);
        assertThat(running.isFreed()).isTrue();
        assertThat(prefill.scheduler().hasPendingWork()).isTrue();
        ticker.advance(LEASE);
        steps(2);
        assertThat(prefill.scheduler().hasPendingWork()).isFalse();
        allBlocksAreBack();
    }

    @Test
    void aPushThatWasForgottenIsMadeAfterReRegistration() {
        Running running = registered("r");
        ticker.advance(LEASE);
        step(prefill);
        assertThat(running.isLoading()).isTrue();
        steps(2);
        prefills("r");
        completes(running, 8);
        allBlocksAreBackAndNothingIsRejected();
    }

    @Test
    void aHandshakeThatFailsIsMadeAgain() {
        Running running = atOnce("r");
        step(decode);
        step(decode);
        net.sideChannelsDown(true);
        step(prefill);
        prefills("r");
        step(prefill);
        net.sideChannelsDown(false);
        ticker.advance(Duration.ofSeconds(6));
        completes(running, 8);
        allBlocksAreBackAndNothingIsRejected();
    }

    @Test
    void aPushOfARefusedPrefillRequestFails() {
        Running running = registered("cmpl-r-0-0badcafe");
        prefill.scheduler().onRefused("cmpl-r-0-deadbeef", KEEP);
        completes(running, 0);
        allBlocksAreBack();
    }

    @Test
    void withoutPermitsNoBlockIsFreedUntilThePushHasEnded() {
        net.withoutPermits();
        Running running = registered("r");
        decode.end(running, RequestEnd.ABORTED);
        step(decode);
        ticker.advance(Duration.ofSeconds(100));
        step(decode);
        assertThat(running.isFreed()).isFalse();
        allBlocksAreBack();
    }

    /** The prefill instance goes on writing, over its own connection. */
    @Test
    void aPushThatLosesItsConnectionIsOverAndTheNextOneSucceeds() {
        Running running = registered("cmpl-r-0-0badcafe");
        Running first = prefilling("cmpl-r-0-deadbeef");
        prefill.step(new Share(first, 4));
        net.disconnect(decodeRuntime, prefillRuntime);
        ticker.advance(Duration.ofMillis(1));
        step(decode);
        assertThat(running.isLoading()).isFalse();
        assertThat(running.computedTokens()).isZero();
        decode.end(running, RequestEnd.ABORTED);
        decode.cache().host().fill((byte) 0x55);
        // The same again; the prefill instance does not know that the first has ended.
        Running again = atOnce("cmpl-r-0-fadedcab");
        prefill.step(new Share(first, 5));
        assertThat(isUntouched()).isTrue();
        prefill.end(first, RequestEnd.LENGTH);
        completes(again, 8);
        Running other = registered("cmpl-s-0-0badcafe");
        prefills("cmpl-s-0-deadbeef");
        completes(other, 8);
        allBlocksAreBackAndNothingIsRejected();
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 4, 9})
    void aPrefillInstanceThatLosesItsConnectionPushesOverTheNextOne(int before) {
        Running running = registered("r");
        Running first = prefilling("r");
        if (before > 0) {
            net.hold(true);
            prefill.step(new Share(first, before));
        }
        net.disconnect(prefillRuntime, decodeRuntime);
        net.hold(false);
        ticker.advance(Duration.ofMillis(1));
        if (before < 9) {
            prefill.step(new Share(first, 9 - before));
        }
        prefill.end(first, RequestEnd.LENGTH);
        completes(running, 8);
        allBlocksAreBackAndNothingIsRejected();
    }

    /** A block that was good when it was digested is bad after it has been written again. */
    @Test
    void checksumsOfBlocksThatArePushedTwiceAreComputedAgain() {
        Running running = registered("r");
        Running first = prefilling("r");
        prefill.step(new Share(first, 8));
        step(decode);
        net.disconnect(prefillRuntime, decodeRuntime);
        ticker.advance(Duration.ofMillis(1));
        MemorySegment block = decode.cache().block(running.blockTable()[0]);
        byte wrong = (byte) (block.get(ValueLayout.JAVA_BYTE, 5) + 1);
        net.afterCopy(() -> block.set(ValueLayout.JAVA_BYTE, 5, wrong));
        prefill.step(new Share(first, 1));
        prefill.end(first, RequestEnd.LENGTH);
        completes(running, 0);
        assertThat(rejections()).containsExactly("corrupt");
        net.afterCopy(() -> {});
        allBlocksAreBack();
    }

    /** As by a write that ends with its permit, in the middle. */
    @Test
    void checksumsAreComputedAgainAfterAWriteWithoutANotification() {
        Running running = registered("r");
        Running first = prefilling("r");
        prefill.step(new Share(first, 8));
        step(decode);
        MemorySegment block = decode.cache().block(running.blockTable()[0]);
        byte wrong = (byte) (block.get(ValueLayout.JAVA_BYTE, 5) + 1);
        net.afterCopy(() -> block.set(ValueLayout.JAVA_BYTE, 5, wrong));
        net.loseMessages(true);
        assertThat(net.repeatWrites()).isPositive();
        net.loseMessages(false);
        net.afterCopy(() -> {});
        prefill.step(new Share(first, 1));
        prefill.end(first, RequestEnd.LENGTH);
        completes(running, 0);
        assertThat(rejections()).containsExactly("corrupt");
        allBlocksAreBack();
    }

    @Test
    void whenBothConnectionsBreakTheNextRequestsArePushedAndPulled() {
        Running running = registered("r-1");
        Running first = prefilling("r-1");
        net.hold(true);
        prefill.step(new Share(first, 9));
        net.disconnect(prefillRuntime, decodeRuntime);
        net.disconnect(decodeRuntime, prefillRuntime);
        net.hold(false);
        ticker.advance(Duration.ofMillis(1));
        step(decode);
        assertThat(running.isLoading()).isFalse();
        decode.end(running, RequestEnd.ABORTED);
        prefill.end(first, RequestEnd.LENGTH);
        for (int i = 2; i < 5; i++) {
            Running written = atOnce("r-" + i);
            steps(2);
            prefills("r-" + i);
            completes(written, 8);
            Running named = prefilling("n-" + i);
            prefill.step(new Share(named, 9));
            JsonFields params = prefill.end(named, RequestEnd.LENGTH).orElseThrow();
            completes(decode.admit(atDecode("m-" + i, 9).withKvTransferParams(params), 0), 8);
        }
        allBlocksAreBackAndNothingIsRejected();
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aPushOfARequestThatWasAbortedBeforeItWasScheduledFails(boolean askedBefore) {
        FakeKvRequest asking = atDecode("cmpl-r-0-0badcafe", 9).withKvTransferParams(whereToLook(1));
        Optional<Running> early = askedBefore ? Optional.of(decode.admit(asking, 0)) : Optional.empty();
        steps(2);
        FakeKvRequest queued = atPrefill("cmpl-r-0-deadbeef", 9);
        prefill.scheduler().onNewRequest(queued);
        step(prefill);
        prefill.scheduler().onFinished(queued, RequestEnd.ABORTED, new int[0]);
        assertThat(prefill.scheduler().hasPendingWork()).isTrue();
        step(prefill);
        completes(early.orElseGet(() -> decode.admit(asking, 0)), 0);
        // The next attempt is another matter.
        Running again = registered("cmpl-r-0-fadedcab");
        assertThat(again.isLoading()).isTrue();
        prefills("cmpl-r-0-fadedace");
        completes(again, 8);
        allBlocksAreBack();
    }

    @Test
    void aHandshakeThatFailsHalfwayEndsNoOtherThatIsUnderWay() {
        decode.close();
        prefill.close();
        prefill = prefill(2, 4);
        decode = decode(1, 4);
        net.hold(true);
        // The same instance by another name, and with a rank that it does not have.
        ObjectNode wrong = whereToLook(3).toJson();
        wrong.put("remote_host", "127.0.0.1");
        Running misled =
                decode.admit(atDecode("r-1", 9).withKvTransferParams(JsonFields.of("kv_transfer_params", wrong)), 0);
        step(decode);
        Running running = decode.admit(atDecode("r-2", 9).withKvTransferParams(whereToLook(2)), 0);
        step(decode);
        assertThat(net.waiting()).isEqualTo(2);
        net.runOne();
        net.beforeAnswer(rank -> {
            if (rank.tensor() == 1) {
                ticker.advance(Duration.ofMillis(1));
                step(decode);
                step(decode);
                assertThat(misled.isLoading()).isFalse();
            }
        });
        net.runOne();
        net.beforeAnswer(_ -> {});
        net.hold(false);
        completes(misled, 0);
        prefills("r-2");
        completes(running, 8);
        allBlocksAreBack();
    }

    /** The end of the first attempt and the beginning of the second come together. */
    @Test
    void aPushAttemptAfterAnAbortedOneSucceeds() {
        Running aborted = registered("cmpl-r-0-0badcafe");
        decode.end(aborted, RequestEnd.ABORTED);
        Running again = registered("cmpl-r-0-fadedcab");
        assertThat(aborted.isFreed()).isTrue();
        assertThat(again.isLoading()).isTrue();
        prefills("cmpl-r-0-deadbeef");
        completes(again, 8);
        allBlocksAreBackAndNothingIsRejected();
    }

    @Test
    void aPushsIdMayBeginWithAnotherOnes() {
        Running one = atOnce("a");
        Running two = registered("a:b");
        prefills("a:b");
        completes(two, 8);
        assertThat(one.isLoading()).isTrue();
        prefills("a");
        completes(one, 8);
        allBlocksAreBackAndNothingIsRejected();
    }

    @Test
    void anAbortedPrefillEndsThePush() {
        Running running = registered("r");
        Running first = prefilling("r");
        prefill.step(new Share(first, 4));
        prefill.end(first, RequestEnd.ABORTED);
        prefill.step();
        completes(running, 0);
        allBlocksAreBack();
    }

    @Test
    void aPreemptedPromptIsPushedAnew() {
        Running running = registered("r");
        FakeKvRequest request = atPrefill("r", 9);
        Running first = prefill.admit(request, 0);
        prefill.step(new Share(first, 6));
        prefill.free(first);
        Running again = prefill.admitAgain(request, 0);
        prefill.step(Set.of("r"), new Share(again, 5));
        prefill.step(new Share(again, 4));
        prefill.end(again, RequestEnd.LENGTH);
        completes(running, 8);
        allBlocksAreBackAndNothingIsRejected();
    }

    @Test
    void aPushWithoutAPrefillRequestFailsAfterALease() {
        Running running = registered("r");
        heartbeats(5);
        assertThat(running.isLoading()).isTrue();
        heartbeats(1);
        completes(running, 0);
        allBlocksAreBack();
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void aPushIsAwaitedAsLongAsItsPrefillRequestWaits(boolean aborted) {
        Running running = registered("cmpl-r-0-0badcafe");
        heartbeats(3);
        FakeKvRequest queued = atPrefill("cmpl-r-0-deadbeef", 9);
        prefill.scheduler().onNewRequest(queued);
        heartbeats(40);
        assertThat(running.isLoading()).isTrue();
        if (aborted) {
            prefill.scheduler().onFinished(queued, RequestEnd.ABORTED, new int[0]);
        } else {
            Running first = prefill.admitAgain(queued, 0);
            prefill.step(new Share(first, 9));
            prefill.end(first, RequestEnd.LENGTH);
        }
        completes(running, aborted ? 0 : 8);
        allBlocksAreBackAndNothingIsRejected();
    }

    /** The abort of a prompt that lost its blocks comes while it waits for others. */
    @Test
    void anAbortedPreemptedPromptEndsThePush() {
        Running running = registered("r");
        FakeKvRequest request = atPrefill("r", 9);
        Running first = prefill.admit(request, 0);
        prefill.step(new Share(first, 6));
        prefill.free(first);
        prefill.step(Set.of("r"));
        heartbeats(10);
        assertThat(running.isLoading()).isTrue();
        prefill.scheduler().onFinished(request, RequestEnd.ABORTED, new int[0]);
        completes(running, 0);
        allBlocksAreBack();
    }

    private void heartbeats(int count) {
        for (int i = 0; i < count; i++) {
            ticker.advance(Duration.ofSeconds(5));
            steps(1);
        }
    }

    @Test
    void aPushOfWhichThePrefillInstanceCannotReachTheDecodeInstanceFailsAfterALease() {
        Running running = atOnce("r");
        step(decode);
        step(decode);
        net.sideChannelsDown(true);
        prefills("r");
        heartbeats(5);
        assertThat(running.isLoading()).isTrue();
        heartbeats(1);
        completes(running, 0);
        allBlocksAreBack();
        net.sideChannelsDown(false);
        assertThat(counted("vllm:nixl_num_kv_expired_reqs")).isZero();
    }

    @Test
    void aDeadPrefillInstanceEndsThePush() {
        Running running = registered("r");
        net.kill(prefillRuntime);
        step(decode);
        step(decode);
        assertThat(running.isLoading()).isFalse();
        decode.end(running, RequestEnd.ABORTED);
        assertThat(decode.usedBlocks()).isZero();
    }

    /** A prompt of 9 tokens in one step. */
    private void prefills(String id) {
        Running running = prefilling(id);
        prefill.step(new Share(running, 9));
        prefill.end(running, RequestEnd.LENGTH);
    }
}
