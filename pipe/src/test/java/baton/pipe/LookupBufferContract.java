package baton.pipe;

import static baton.pipe.WireContract.background;
import static baton.pipe.WireContract.result;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** The contract of lookup buffers, within a process and over pipes of every transport. */
public abstract class LookupBufferContract {
    private static final Duration LONG = Duration.ofSeconds(60);
    private static final Duration SHORT = Duration.ofMillis(300);

    /** The memory of entries that a pipe may send until it notices its end. */
    private final Arena arena = Arena.ofAuto();

    private final List<AutoCloseable> opened = new ArrayList<>();

    /** The inserting end and the one that looks up; may be the same object. */
    protected record Ends(LookupBuffer producer, LookupBuffer consumer) {}

    protected abstract Ends ends(LookupBuffer.Settings settings) throws Exception;

    private Ends open(LookupBuffer.Settings settings) throws Exception {
        Ends ends = ends(settings);
        opened.add(ends.producer());
        opened.add(ends.consumer());
        return ends;
    }

    @AfterEach
    void closeAll() throws Exception {
        for (AutoCloseable each : opened.reversed()) {
            each.close();
        }
    }

    @Test
    void anInsertedEntryIsTakenOnce() throws Exception {
        Ends ends = open(LookupBuffer.Settings.DEFAULT);
        LookupBuffer.Entry entry = entry(1, 1, 2, 3, 4);
        ends.producer().insert(entry, LONG);
        take(ends, entry, 1, 2, 3, 4);
        assertThatThrownBy(() -> ends.consumer().dropSelect(entry.tokens(), entry.roi(), SHORT))
                .isInstanceOf(PipeException.class)
                .hasMessageContaining("no entry for 4 tokens");
    }

    @Test
    void theShorterOfBothDecides() throws Exception {
        Ends ends = open(LookupBuffer.Settings.DEFAULT);
        LookupBuffer.Entry entry = entry(1, 1, 2, 3, 4);
        ends.producer().insert(entry, LONG);
        take(ends, entry, 1, 2);
        ends.producer().insert(entry, LONG);
        take(ends, entry, 1, 2, 3, 4, 5, 6);
        ends.producer().insert(entry, LONG);
        take(ends, entry);
        ends.producer().insert(entry, LONG);
        assertThatThrownBy(() -> ends.consumer().dropSelect(new int[] {1, 2, 4}, all(3), SHORT))
                .isInstanceOf(PipeException.class);
        assertThatThrownBy(
                        () -> ends.consumer().dropSelect(new int[] {1, 2, 3}, new boolean[] {true, false, true}, SHORT))
                .isInstanceOf(PipeException.class);
        take(ends, entry, 1, 2, 3, 4);
    }

    @Test
    void amongMatchingEntriesTheOldestIsTaken() throws Exception {
        Ends ends = open(LookupBuffer.Settings.DEFAULT);
        for (int i = 0; i < 5; i++) {
            ends.producer().insert(entry(i, 7, 8), LONG);
        }
        ends.producer().insert(entry(9, 6), LONG);
        take(ends, entry(9, 6), 6);
        for (int i = 0; i < 5; i++) {
            take(ends, entry(i, 7, 8), 7, 8);
        }
    }

    @Test
    void manyWaitAtOnceAndAreAnsweredAsEntriesCome() throws Exception {
        Ends ends = open(LookupBuffer.Settings.DEFAULT);
        int count = 200;
        List<FutureTask<Boolean>> waiting = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            int prompt = i;
            FutureTask<Boolean> task = new FutureTask<>(() -> {
                take(ends, entry(prompt, prompt, 1, prompt), prompt, 1, prompt);
                return true;
            });
            Thread.ofVirtual().start(task);
            waiting.add(task);
        }
        List<Integer> order = new ArrayList<>(IntStream.range(0, count).boxed().toList());
        Collections.shuffle(order, new Random(1));
        for (int prompt : order) {
            ends.producer().insert(entry(prompt, prompt, 1, prompt), LONG);
        }
        for (FutureTask<Boolean> each : waiting) {
            assertThat(result(each)).isTrue();
        }
    }

    @Test
    void aFullBufferAcceptsAnEntryOnceAnotherIsTaken() throws Exception {
        long bytes = entry(1, 1, 2).bytes();
        Ends ends = open(new LookupBuffer.Settings(3 * bytes, LONG));
        for (int i = 0; i < 3; i++) {
            ends.producer().insert(entry(i, i, 2), Duration.ZERO);
        }
        assertThatThrownBy(() -> ends.producer().insert(entry(3, 3, 2), SHORT))
                .isInstanceOf(PipeException.class)
                .hasMessageContaining("no room for " + bytes + " within " + 3 * bytes);
        FutureTask<Boolean> inserting = background(() -> {
            ends.producer().insert(entry(3, 3, 2), LONG);
            return true;
        });
        assertThatThrownBy(() -> inserting.get(100, TimeUnit.MILLISECONDS)).isInstanceOf(TimeoutException.class);
        take(ends, entry(1, 1, 2), 1, 2);
        assertThat(result(inserting)).isTrue();
        for (int i : new int[] {3, 0, 2}) {
            take(ends, entry(i, i, 2), i, 2);
        }
        assertThatThrownBy(() -> ends.producer().insert(entry(1, new int[1000]), LONG))
                .hasMessageContaining("the buffer holds " + 3 * bytes);
    }

    @Test
    void entriesThatAreNotTakenAreDroppedForLaterOnes() throws Exception {
        long bytes = entry(1, 1, 2).bytes();
        Ends ends = open(new LookupBuffer.Settings(2 * bytes, SHORT));
        for (int i = 0; i < 5; i++) {
            ends.producer().insert(entry(i, i, 2), LONG);
        }
        take(ends, entry(4, 4, 2), 4);
        assertThatThrownBy(() -> ends.consumer().dropSelect(new int[] {0}, all(1), SHORT))
                .isInstanceOf(PipeException.class);
    }

    @Test
    void aWaitingLookupIsNotifiedThatAnEntryWillNeverCome() throws Exception {
        Ends ends = open(LookupBuffer.Settings.DEFAULT);
        ends.producer().insertNever(new int[] {1, 2}, all(2), LONG);
        assertThat(ends.consumer().dropSelect(new int[] {1, 2, 3}, all(3), LONG))
                .isEmpty();
        FutureTask<Optional<LookupBuffer.Entry>> waiting =
                background(() -> ends.consumer().dropSelect(new int[] {4}, all(1), LONG));
        ends.producer().insertNever(new int[] {4}, all(1), LONG);
        assertThat(result(waiting)).isEmpty();
        assertThatThrownBy(() -> ends.consumer().dropSelect(new int[] {4}, all(1), SHORT))
                .isInstanceOf(PipeException.class);
    }

    @Test
    void aCancelledLookupTakesNoEntry() throws Exception {
        Ends ends = open(LookupBuffer.Settings.DEFAULT);
        assertThatThrownBy(() -> ends.consumer().dropSelect(new int[] {1}, all(1), SHORT))
                .isInstanceOf(PipeException.class);
        FutureTask<Optional<LookupBuffer.Entry>> task =
                new FutureTask<>(() -> ends.consumer().dropSelect(new int[] {1}, all(1), LONG));
        Thread interrupted = Thread.ofVirtual().start(task);
        assertThatThrownBy(() -> task.get(100, TimeUnit.MILLISECONDS)).isInstanceOf(TimeoutException.class);
        interrupted.interrupt();
        assertThatThrownBy(() -> result(task)).isInstanceOf(PipeException.class);
        // Its answer shows that the cancellations have arrived, because requests are in order.
        ends.producer().insert(entry(2, 2), LONG);
        take(ends, entry(2, 2), 2);
        ends.producer().insert(entry(1, 1), LONG);
        take(ends, entry(1, 1), 1);
    }

    @Test
    void theProducersEndFailsWaitingLookups() throws Exception {
        Ends ends = open(LookupBuffer.Settings.DEFAULT);
        List<FutureTask<Optional<LookupBuffer.Entry>>> waiting = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            waiting.add(background(() -> ends.consumer().dropSelect(new int[] {1}, all(1), LONG)));
        }
        assertThatThrownBy(() -> waiting.getFirst().get(100, TimeUnit.MILLISECONDS))
                .isInstanceOf(TimeoutException.class);
        ends.producer().close();
        for (FutureTask<Optional<LookupBuffer.Entry>> each : waiting) {
            assertThatThrownBy(() -> result(each)).isInstanceOf(PipeException.class);
        }
        assertThatThrownBy(() -> ends.consumer().dropSelect(new int[] {1}, all(1), LONG))
                .isInstanceOf(PipeException.class);
    }

    @Test
    void theConsumersEndFailsInsertions() throws Exception {
        Ends ends = open(new LookupBuffer.Settings(entry(1, 1).bytes(), LONG));
        ends.producer().insert(entry(1, 1), LONG);
        FutureTask<Boolean> inserting = background(() -> {
            ends.producer().insert(entry(2, 2), LONG);
            return true;
        });
        assertThatThrownBy(() -> inserting.get(100, TimeUnit.MILLISECONDS)).isInstanceOf(TimeoutException.class);
        ends.consumer().close();
        assertThatThrownBy(() -> result(inserting)).isInstanceOf(PipeException.class);
        assertThatThrownBy(() -> ends.producer().insert(entry(2, 2), LONG)).isInstanceOf(PipeException.class);
    }

    @Test
    void twoHundredRequestsInAnotherOrderWithASmallBuffer() throws Exception {
        Ends ends = open(new LookupBuffer.Settings(1 << 20, LONG));
        int count = 200;
        FutureTask<Boolean> inserting = background(() -> {
            for (int i = 0; i < count; i++) {
                ends.producer().insert(large(i), LONG);
            }
            return true;
        });
        List<FutureTask<Boolean>> taking = new ArrayList<>();
        for (int t = 0; t < 8; t++) {
            int first = t;
            taking.add(background(() -> {
                for (int i = first; i < count; i += 8) {
                    LookupBuffer.Entry entry = large(i);
                    take(ends, entry, entry.tokens());
                }
                return true;
            }));
        }
        for (FutureTask<Boolean> each : taking) {
            assertThat(result(each)).isTrue();
        }
        assertThat(result(inserting)).isTrue();
        assertThatThrownBy(() -> ends.consumer().dropSelect(new int[0], new boolean[0], SHORT))
                .isInstanceOf(PipeException.class);
    }

    /** An entry that belongs to a prompt of its own, with 64 KiB. */
    private LookupBuffer.Entry large(int prompt) {
        Random random = new Random(prompt);
        int[] tokens = random.ints(1 + random.nextInt(100), 0, 1000).toArray();
        tokens[0] = prompt;
        return new LookupBuffer.Entry(
                tokens,
                all(tokens.length),
                tensor(random, 2, 4, 2048),
                tensor(random, 2, 4, 2048),
                tensor(random, 1, 8));
    }

    private LookupBuffer.Entry entry(int content, int... tokens) {
        Random random = new Random(content);
        return new LookupBuffer.Entry(
                tokens, all(tokens.length), tensor(random, 2, 3, 4), tensor(random, 2, 3, 4), tensor(random, 5));
    }

    private Tensor tensor(Random random, long... shape) {
        List<Long> sizes = Arrays.stream(shape).boxed().toList();
        byte[] content = new byte[Math.toIntExact(Tensor.bytes(Tensor.Type.BF16, sizes))];
        random.nextBytes(content);
        MemorySegment data = arena.allocate(content.length).copyFrom(MemorySegment.ofArray(content));
        return new Tensor(Tensor.Type.BF16, sizes, data);
    }

    private static void take(Ends ends, LookupBuffer.Entry expected, int... tokens) throws PipeException {
        try (LookupBuffer.Entry came =
                ends.consumer().dropSelect(tokens, all(tokens.length), LONG).orElseThrow()) {
            assertThat(came.tokens()).isEqualTo(expected.tokens());
            assertThat(came.roi()).isEqualTo(expected.roi());
            PipeContract.assertSame(came.key(), expected.key());
            PipeContract.assertSame(came.value(), expected.value());
            PipeContract.assertSame(came.hidden(), expected.hidden());
        }
    }

    private static boolean[] all(int count) {
        boolean[] roi = new boolean[count];
        Arrays.fill(roi, true);
        return roi;
    }
}
