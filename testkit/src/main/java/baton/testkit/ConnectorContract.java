package baton.testkit;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvMatch;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.kv.connector.WorkerReport;
import baton.testkit.FakeEngine.PoolMemory;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import org.junit.jupiter.params.Parameter;
import org.junit.jupiter.params.ParameterizedClass;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * The guarantees that an engine needs, checked for any connector that hands prompts over from one instance to another. A connector's test
 * extends this class and makes the two instances; {@link FakeEngine} drives them, and refuses reports about requests without a transfer
 * under way, so nothing may be reported twice.
 *
 * <p>A load may fail wherever a check does not require the prompt to come: the blocks that the connector then reports as loaded have to be
 * right.
 */
@ParameterizedClass(name = "pools in memory of the {0}")
@EnumSource
// JUnit runs parameterized classes one after the other unless they say otherwise.
@Execution(ExecutionMode.CONCURRENT)
public abstract class ConnectorContract {
    /** The place of both instances' pools, for their {@link FakeEngine}. */
    @Parameter
    protected PoolMemory pools = PoolMemory.HOST;

    /** Rounds of steps after which a transfer must be over, well or badly. */
    private static final int MOST_ROUNDS = 20_000;

    /** Two instances that find each other. Their engines have the same layout, and at least 24 blocks. */
    public interface Instances extends AutoCloseable {
        /** Starts the engine of the prefill instance; called once. */
        FakeEngine startPrefill() throws Exception;

        /** Starts the engine of the decode instance; called once, after {@link #startPrefill}. */
        FakeEngine startDecode() throws Exception;

        /**
         * The id of one request, as a router gives it to both legs; each leg's own id begins with it.
         *
         * @param number differs for each request
         */
        default String requestId(int number) {
            return "cmpl-" + number + "-0";
        }

        /** {@code kv_transfer_params} of a prefill leg. */
        default Optional<JsonFields> prefillParams() {
            return Optional.of(JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}"));
        }

        /**
         * Lets a little time pass, so that after {@value #MOST_ROUNDS} pauses every deadline of the connector is over. A test with a clock
         * of its own turns that on.
         */
        default void pause() {
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(1));
        }

        /** Pauses within which blocks without a reader are released; shorter than any lease. */
        default int roundsWithoutReader() {
            return MOST_ROUNDS;
        }

        /** Closes the resources that the engines leave. */
        @Override
        default void close() throws Exception {}
    }

    /** Two instances of a connector, each with 64 blocks, by the system's clock. */
    protected class Pair implements Instances {
        private final KvLayout layout;
        private final Supplier<? extends KvConnector> connector;
        private final Function<KvRole, KvTransferConfig> config;

        /** @param config of the producer, and of the consumer */
        public Pair(
                KvLayout layout, Supplier<? extends KvConnector> connector, Function<KvRole, KvTransferConfig> config) {
            this.layout = layout;
            this.connector = connector;
            this.config = config;
        }

        @Override
        public FakeEngine startPrefill() {
            return engine(KvRole.PRODUCER);
        }

        @Override
        public FakeEngine startDecode() {
            return engine(KvRole.CONSUMER);
        }

        private FakeEngine engine(KvRole role) {
            return new FakeEngine(
                    connector.get(),
                    new ConnectorContext(
                            config.apply(role), new ModelFingerprint("fake", "digest"), layout, Ticker.system()),
                    64,
                    pools);
        }
    }

    /** A load under way, and the blocks that it may write. */
    private record Load(Running running, Set<Integer> blocks) {}

    private final List<Load> loads = new ArrayList<>();
    private Instances instances;
    private FakeEngine prefill;
    private FakeEngine decode;
    private int blockSize;
    private int requests;

    protected abstract Instances instances() throws Exception;

    /** The layout of pools with latent entries. */
    protected static KvLayout latents(int blockSize) {
        return new KvLayout(3, 1, 24, blockSize, DType.BF16, true);
    }

    @BeforeEach
    void start() throws Exception {
        instances = instances();
        prefill = instances.startPrefill();
        decode = instances.startDecode();
        blockSize = decode.cache().layout().blockSize();
    }

    @AfterEach
    void end() throws Exception {
        decode.close();
        prefill.close();
        instances.close();
    }

    /** A request that no other has the prompt of. */
    private record Prompt(String id, int[] tokens) {}

    private Prompt prompt(int length) {
        int number = requests++;
        return new Prompt(instances.requestId(number), FakeKvRequest.counting(1 + 1000 * number, length));
    }

    private FakeKvRequest prefillLeg(Prompt prompt) {
        FakeKvRequest request = new FakeKvRequest(prompt.id() + "-0000000a", prompt.tokens(), blockSize);
        return instances.prefillParams().map(request::withKvTransferParams).orElse(request);
    }

    private FakeKvRequest decodeLeg(Prompt prompt, Optional<JsonFields> answer) {
        FakeKvRequest request = new FakeKvRequest(prompt.id() + "-0000000b", prompt.tokens(), blockSize);
        return answer.map(request::withKvTransferParams).orElse(request);
    }

    /** Computes a prompt at the prefill instance, in two steps, and ends the request. */
    private Optional<JsonFields> prefilled(Prompt prompt) {
        Running running = prefill.admit(prefillLeg(prompt), 0);
        computes(prefill, running, (prompt.tokens().length + 1) / 2);
        computes(prefill, running, running.remainingTokens());
        return prefill.end(running, RequestEnd.LENGTH);
    }

    private void computes(FakeEngine engine, Running running, int tokens) {
        if (tokens > 0) {
            checked(engine.step(new Share(running, tokens)));
        }
    }

    private Running admitted(Prompt prompt, Optional<JsonFields> answer, int local) {
        Running running = decode.admit(decodeLeg(prompt, answer), local);
        loading(running);
        return running;
    }

    private void loading(Running running) {
        if (running.externalTokens() > 0) {
            int[] blocks = running.blockTable();
            int from = running.localTokens() / blockSize;
            int to = Math.ceilDiv(running.localTokens() + running.externalTokens(), blockSize);
            Set<Integer> own = new HashSet<>();
            IntStream.range(from, to).forEach(i -> own.add(blocks[i]));
            loads.add(new Load(running, own));
        }
    }

    /** Checks a report of the decode instance: a block is invalid no later than its load is over. */
    private void checked(WorkerReport report) {
        for (int block : report.invalidBlocks()) {
            assertThat(loads)
                    .as("a load under way that writes block %d", block)
                    .anyMatch(load -> load.blocks().contains(block));
        }
        for (Load load : List.copyOf(loads)) {
            if (!load.running().isLoading()) {
                // Blocks that a load within the step could not fill are computed in the next step.
                loads.remove(load);
                int[] blocks = load.running().blockTable();
                IntStream.range(0, blocks.length)
                        .filter(i -> report.invalidBlocks().contains(blocks[i]))
                        .findFirst()
                        .ifPresent(i -> load.running().truncate(i * blockSize));
            }
        }
    }

    /** One step of both, without anything to compute. */
    private void round() {
        if (!prefill.isConnectorClosed()) {
            WorkerReport report = prefill.idleStep();
            assertThat(report.invalidBlocks()).isEmpty();
        }
        if (!decode.isConnectorClosed()) {
            checked(decode.idleStep());
        }
        instances.pause();
    }

    private void await(String what, BooleanSupplier condition) {
        for (int i = 0; !condition.getAsBoolean(); i++) {
            assertThat(i).as("rounds until " + what).isLessThan(MOST_ROUNDS);
            round();
        }
    }

    /** Goes on with a request once its load is over: all that it has then is right. */
    private void completes(Running running) {
        if (loadsWithinStep(running)) {
            computes(decode, running, 1);
        }
        completesAfterLoad(running);
    }

    private boolean loadsWithinStep(Running running) {
        return !running.isLoading() && loads.stream().anyMatch(load -> load.running() == running);
    }

    private void completesAfterLoad(Running running) {
        if (running.isLoading()) {
            await("the load is over", () -> !running.isLoading());
            decode.resume(running);
        }
        assertThat(decode.holds(running, 0, running.computedTokens())).isTrue();
        computes(decode, running, running.remainingTokens());
        assertThat(decode.holds(running, 0, running.request().promptLength())).isTrue();
        decode.end(running, RequestEnd.LENGTH);
    }

    /** Nothing is left of any request, at once or when all deadlines are over. */
    private void allBlocksAreBack() {
        await("the prefill instance's blocks are free", () -> prefill.isConnectorClosed() || prefill.usedBlocks() == 0);
        await("the decode instance's blocks are free", () -> decode.usedBlocks() == 0);
        await("there is nothing left to do", () -> isIdle(prefill) && isIdle(decode));
    }

    private static boolean isIdle(FakeEngine engine) {
        return engine.isConnectorClosed() || !engine.hasPendingWork();
    }

    private byte[] poolWithout(Set<Integer> blocks) {
        byte[] pool = decode.bytes().toArray(ValueLayout.JAVA_BYTE);
        int bytes = (int) decode.cache().layout().blockBytes();
        blocks.forEach(block -> Arrays.fill(pool, block * bytes, (block + 1) * bytes, (byte) 0));
        return pool;
    }

    private static Set<Integer> blocks(Running running) {
        return Set.copyOf(Arrays.stream(running.blockTable()).boxed().toList());
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 5})
    void aPromptIsHandedOver(int blocks) {
        for (int length = blocks * blockSize - 1; length <= blocks * blockSize + 1; length++) {
            Prompt prompt = prompt(length);
            Running running = admitted(prompt, prefilled(prompt), 0);
            if (length > blockSize) {
                assertThat(running.externalTokens()).isPositive();
            }
            completes(running);
        }
        allBlocksAreBack();
    }

    @Test
    void promptsAreHandedOverSideBySideInAnotherOrder() {
        List<Prompt> prompts =
                IntStream.range(0, 4).mapToObj(_ -> prompt(3 * blockSize + 1)).toList();
        List<Optional<JsonFields>> answers =
                prompts.stream().map(this::prefilled).toList();
        List<Running> running = new ArrayList<>();
        for (int i = prompts.size() - 1; i >= 0; i--) {
            running.add(admitted(prompts.get(i), answers.get(i), 0));
        }
        if (running.stream().anyMatch(this::loadsWithinStep)) {
            checked(decode.step(running.stream().map(each -> new Share(each, 1)).toArray(Share[]::new)));
        }
        running.forEach(this::completesAfterLoad);
        allBlocksAreBack();
    }

    @Test
    void noBytesOfThePoolAreTouchedButThoseOfTheLoadsBlocks() {
        Prompt prompt = prompt(4 * blockSize + 1);
        Optional<JsonFields> answer = prefilled(prompt);
        Running neighbour = decode.admit(
                new FakeKvRequest("neighbour", FakeKvRequest.counting(50_000, 2 * blockSize), blockSize),
                2 * blockSize);
        Running running = admitted(prompt, answer, blockSize);
        Set<Integer> loaded = running.isLoading() ? loads.getFirst().blocks() : blocks(running);
        byte[] before = poolWithout(loaded);
        if (running.isLoading()) {
            await("the load is over", () -> !running.isLoading());
        } else {
            computes(decode, running, 1);
        }
        assertThat(Arrays.equals(poolWithout(loaded), before)).isTrue();
        assertThat(decode.holds(neighbour, 0, 2 * blockSize)).isTrue();
        assertThat(decode.holds(running, 0, running.computedTokens())).isTrue();
        decode.end(neighbour, RequestEnd.ABORTED);
        decode.end(running, RequestEnd.ABORTED);
        allBlocksAreBack();
    }

    /** The engine asks for the match repeatedly, and then the client leaves. */
    @Test
    void aMatchChangesNothingAndARequestThatNeverHadBlocksEnds() {
        Prompt prompt = prompt(2 * blockSize + 1);
        FakeKvRequest request = decodeLeg(prompt, prefilled(prompt));
        decode.scheduler().onNewRequest(request);
        await("the match is known", () -> !(decode.scheduler().match(request, 0) instanceof KvMatch.Pending));
        KvMatch match = decode.scheduler().match(request, 0);
        assertThat(match).isInstanceOf(KvMatch.Tokens.class);
        for (int i = 0; i < 3; i++) {
            assertThat(decode.scheduler().match(request, 0)).isEqualTo(match);
            round();
        }
        decode.endWithoutBlocks(request, RequestEnd.ABORTED);
        allBlocksAreBack();
        Prompt next = prompt(2 * blockSize + 1);
        completes(admitted(next, prefilled(next), 0));
        allBlocksAreBack();
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 1, 2})
    void aRequestThatEndsWhileItIsLoadedGivesItsBlocksBackOnce(int rounds) {
        Prompt prompt = prompt(4 * blockSize + 1);
        Running running = admitted(prompt, prefilled(prompt), 0);
        assumeTrue(running.isLoading(), "does not apply: the connector loads within a step only");
        for (int i = 0; i < rounds; i++) {
            round();
        }
        decode.end(running, RequestEnd.ABORTED);
        await("the blocks are free", running::isFreed);
        allBlocksAreBack();
    }

    @Test
    void aPromptThatNobodyTakesGivesItsBlocksBackOnce() {
        assertThat(prefilled(prompt(2 * blockSize + 1))).isNotNull();
        allBlocksAreBack();
    }

    /** Its client had left: no reader can find the blocks, so they are not kept until a deadline. */
    @Test
    void aPromptWhoseAnswerReachesNobodyGivesItsBlocksBackAtOnce() {
        List<Running> ended = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Running running = prefill.admit(prefillLeg(prompt(2 * blockSize + 1)), 0);
            computes(prefill, running, running.remainingTokens());
            Optional<JsonFields> _ = prefill.end(running, RequestEnd.LENGTH);
            ended.add(running);
            if (i == 1) {
                round();
            }
            prefill.loseAnswer(running);
        }
        for (int i = 0; prefill.usedBlocks() > 0; i++) {
            assertThat(i).as("steps until the blocks are free").isLessThan(instances.roundsWithoutReader());
            round();
        }
        assertThat(ended).allMatch(Running::isFreed);
        allBlocksAreBack();
    }

    @Test
    void aPrefillThatEndsEarlyKeepsNothing() {
        for (RequestEnd how : new RequestEnd[] {RequestEnd.ABORTED, RequestEnd.ERROR}) {
            Running running = prefill.admit(prefillLeg(prompt(2 * blockSize + 1)), 0);
            computes(prefill, running, blockSize);
            prefill.end(running, how);
            allBlocksAreBack();
        }
    }

    /** Its keys and values are wrong, so no instance gets them. */
    @Test
    void aPromptWhoseLogitsAreNotFiniteIsNotHandedOver() {
        Prompt prompt = prompt(3 * blockSize + 1);
        FakeKvRequest request = prefillLeg(prompt);
        prefill.discardSavesOf(request);
        Running wrong = prefill.admit(request, 0);
        computes(prefill, wrong, wrong.remainingTokens());
        Running running = admitted(prompt, prefill.end(wrong, RequestEnd.ERROR), 0);
        if (loadsWithinStep(running)) {
            computes(decode, running, 1);
        } else if (running.isLoading()) {
            await("the load is over", () -> !running.isLoading());
            decode.resume(running);
        }
        assertThat(running.computedTokens()).as("tokens loaded").isZero();
        completes(running);
        allBlocksAreBack();
    }

    @Test
    void aPromptThatIsPreemptedWhileItIsComputedIsHandedOverAsItIsThen() {
        Prompt prompt = prompt(3 * blockSize + 1);
        FakeKvRequest request = prefillLeg(prompt);
        Running first = prefill.admit(request, 0);
        computes(prefill, first, blockSize + 1);
        prefill.free(first);
        Running again = prefill.admitAgain(request, 0);
        assertThat(prefill.step(Set.of(request.id()), new Share(again, again.remainingTokens()))
                        .invalidBlocks())
                .isEmpty();
        Running running = admitted(prompt, prefill.end(again, RequestEnd.LENGTH), 0);
        assertThat(running.externalTokens()).isPositive();
        completes(running);
        allBlocksAreBack();
    }

    @Test
    void aRequestThatIsPreemptedAfterItsLoadEndsRight() {
        Prompt prompt = prompt(3 * blockSize + 1);
        FakeKvRequest request = decodeLeg(prompt, prefilled(prompt));
        Running first = decode.admit(request, 0);
        loading(first);
        if (first.isLoading()) {
            await("the load is over", () -> !first.isLoading());
            decode.resume(first);
        }
        computes(decode, first, 1);
        decode.free(first);
        checked(decode.step(Set.of(request.id())));
        Running again = decode.admitAgain(request, 0);
        loading(again);
        completes(again);
        allBlocksAreBack();
    }

    /** Before the load, and while it is under way. Blocks that did not come are computed. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void whatAnInstanceThatIsGoneCannotGiveIsComputed(boolean loading) {
        Prompt prompt = prompt(4 * blockSize + 1);
        Optional<JsonFields> answer = prefilled(prompt);
        if (!loading) {
            prefill.closeConnector();
        }
        Running running = admitted(prompt, answer, 0);
        if (loading) {
            prefill.closeConnector();
        }
        completes(running);
        allBlocksAreBack();
    }

    @Test
    void aPromptThatNobodyHasComputedIsComputedHere() {
        Prompt prompt = prompt(4 * blockSize + 1);
        completes(admitted(prompt, Optional.empty(), 0));
        allBlocksAreBack();
    }

    @Test
    void aClosedConnectorLeavesThePoolAlone() {
        Prompt prompt = prompt(4 * blockSize + 1);
        Optional<JsonFields> answer = prefilled(prompt);
        admitted(prompt, answer, 0);
        decode.idleStep();
        decode.closeConnector();
        MemorySegment pool = decode.bytes();
        byte[] before = pool.toArray(ValueLayout.JAVA_BYTE);
        for (int i = 0; i < 50; i++) {
            round();
        }
        assertThat(Arrays.equals(pool.toArray(ValueLayout.JAVA_BYTE), before)).isTrue();
        await("the prefill instance's blocks are free", () -> prefill.usedBlocks() == 0);
    }
}
