package baton.pipe;

import static baton.pipe.WireContract.background;
import static baton.pipe.WireContract.result;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.Ticker;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** The contract of pipes, over wires of every transport. */
public abstract class PipeContract {
    private static final Duration LONG = Duration.ofSeconds(60);
    private static final Duration SHORT = Duration.ofMillis(300);

    /** The memory of tensors that a pipe may send until it notices its end. */
    private final Arena arena = Arena.ofAuto();

    private final List<AutoCloseable> opened = new ArrayList<>();

    /** Two connected ends. */
    protected abstract Wire[] wires() throws Exception;

    @AfterEach
    void closeAll() throws Exception {
        for (AutoCloseable each : opened.reversed()) {
            each.close();
        }
    }

    private record Ends(Pipe sender, Pipe receiver) {}

    private Ends pipe(WirePipe.Settings settings) throws Exception {
        Wire[] wires = wires();
        Pipe sender = WirePipe.sender(wires[0], settings, Ticker.system());
        opened.add(sender);
        Pipe receiver = WirePipe.receiver(wires[1], settings, Ticker.system());
        opened.add(receiver);
        return new Ends(sender, receiver);
    }

    @Test
    void tensorsArriveInOrder() throws Exception {
        Ends ends = pipe(WirePipe.Settings.DEFAULT);
        List<Tensor> all = new ArrayList<>();
        Random random = new Random(1);
        for (int i = 0; i < 200; i++) {
            all.add(
                    switch (i % 7) {
                        case 0 -> empty();
                        case 1 -> tensor(random, Tensor.Type.F32);
                        case 2 -> tensor(random, Tensor.Type.BOOL, 3, 0, 5);
                        case 3 -> tensor(random, Tensor.Type.BF16, 2, 17, 4, 8);
                        case 4 -> tensor(random, Tensor.Type.I64, 1, 1, 1, 1, 1, 1, 1, 2);
                        case 5 -> tensor(random, Tensor.Type.U8, 1 + random.nextInt(100_000));
                        default -> tensor(random, Tensor.Type.F16, 333);
                    });
        }
        all.add(tensor(random, Tensor.Type.U8, (2 * PipeFrame.PIECE) + 12345));
        FutureTask<Boolean> sending = background(() -> {
            for (Tensor each : all) {
                ends.sender.send(each, LONG);
            }
            return true;
        });
        for (Tensor sent : all) {
            try (Tensor came = ends.receiver.receive(TensorMemory.HOST, LONG)) {
                assertSame(came, sent);
            }
        }
        assertThat(result(sending)).isTrue();
    }

    @Test
    void aTensorIsClosedOnceWhetherItIsSentOrNot() throws Exception {
        Ends ends = pipe(WirePipe.Settings.DEFAULT.withBufferBytes(8 << 20).withTensorBytes(8 << 20));
        AtomicInteger closed = new AtomicInteger();
        ends.sender.send(counted(8 << 20, closed), LONG);
        assertThatThrownBy(() -> ends.sender.send(counted(8 << 20, closed), Duration.ZERO))
                .hasMessageContaining("no room");
        assertThat(closed).as("the unsent tensors").hasPositiveValue();
        assertThatThrownBy(() -> ends.sender.send(counted(16 << 20, closed), LONG))
                .hasMessageContaining("at most");
        ends.receiver.receive(TensorMemory.HOST, LONG).close();
        ends.sender.send(empty(), LONG);
        assertSame(ends.receiver.receive(TensorMemory.HOST, LONG), empty());
        assertThat(closed).hasValue(3);
    }

    private Tensor empty() {
        return tensor(new Random(0), Tensor.Type.U8, 0);
    }

    private Tensor counted(int bytes, AtomicInteger closed) {
        TensorBytes data = new TensorBytes.Host(arena.allocate(bytes));
        return new Tensor(Tensor.Type.U8, List.of((long) bytes), data, closed::incrementAndGet);
    }

    @Test
    void aSlowReceiverStopsTheSenderAtItsBuffer() throws Exception {
        int bytes = 1 << 20;
        int fit = 4;
        Ends ends = pipe(WirePipe.Settings.DEFAULT.withBufferBytes((long) fit * (bytes + PipeFrame.BYTES)));
        Tensor tensor = tensor(new Random(1), Tensor.Type.U8, bytes);
        for (int i = 0; i < fit; i++) {
            ends.sender.send(tensor, Duration.ZERO);
        }
        assertThatThrownBy(() -> ends.sender.send(tensor, SHORT))
                .isInstanceOf(PipeException.class)
                .hasMessageContaining("the receiver has not taken " + fit * (bytes + PipeFrame.BYTES) + " bytes");
        AtomicInteger sent = new AtomicInteger(fit);
        FutureTask<Boolean> sending = background(() -> {
            while (sent.get() < 20) {
                ends.sender.send(tensor, LONG);
                sent.incrementAndGet();
            }
            return true;
        });
        for (int taken = 0; taken < 20; taken++) {
            assertThat(sent.get()).isLessThanOrEqualTo(fit + taken);
            assertSame(ends.receiver.receive(TensorMemory.HOST, LONG), tensor);
        }
        assertThat(result(sending)).isTrue();
    }

    @Test
    void aTensorLargerThanTheBufferGoesAlone() throws Exception {
        Ends ends = pipe(WirePipe.Settings.DEFAULT.withBufferBytes(1000));
        Tensor large = tensor(new Random(1), Tensor.Type.U8, 1 << 20);
        Tensor small = tensor(new Random(2), Tensor.Type.U8, 10);
        ends.sender.send(large, LONG);
        assertThatThrownBy(() -> ends.sender.send(small, SHORT)).isInstanceOf(PipeException.class);
        assertSame(ends.receiver.receive(TensorMemory.HOST, LONG), large);
        ends.sender.send(small, LONG);
        assertThatThrownBy(() -> ends.sender.send(large, SHORT)).isInstanceOf(PipeException.class);
        assertSame(ends.receiver.receive(TensorMemory.HOST, LONG), small);
    }

    @Test
    void aReceiveTimeoutLeavesThePipeUsable() throws Exception {
        Ends ends = pipe(WirePipe.Settings.DEFAULT);
        assertThatThrownBy(() -> ends.receiver.receive(TensorMemory.HOST, SHORT))
                .isInstanceOf(PipeException.class);
        Tensor tensor = tensor(new Random(1), Tensor.Type.F32, 5);
        ends.sender.send(tensor, LONG);
        assertSame(ends.receiver.receive(TensorMemory.HOST, LONG), tensor);
    }

    @Test
    void anIdlePipeLivesLongerThanItsSilence() throws Exception {
        Ends ends = pipe(WirePipe.Settings.DEFAULT.withSilence(Duration.ofSeconds(2)));
        assertThatThrownBy(() -> ends.receiver.receive(TensorMemory.HOST, Duration.ofSeconds(3)))
                .hasMessageContaining("nothing came");
        ends.sender.send(empty(), LONG);
        assertSame(ends.receiver.receive(TensorMemory.HOST, LONG), empty());
    }

    @Test
    void aSilentPeerCountsAsDead() throws Exception {
        WirePipe.Settings impatient = WirePipe.Settings.DEFAULT.withSilence(Duration.ofMillis(500));
        Pipe receiver = WirePipe.receiver(wires()[0], impatient, Ticker.system());
        opened.add(receiver);
        assertThatThrownBy(() -> receiver.receive(TensorMemory.HOST, LONG)).hasMessageContaining("has ended");
        Pipe sender = WirePipe.sender(wires()[0], impatient.withBufferBytes(10), Ticker.system());
        opened.add(sender);
        sender.send(empty(), LONG);
        assertThatThrownBy(() -> sender.send(empty(), LONG)).hasMessageContaining("has ended");
    }

    @Test
    void theEndOfOneSideFailsTheOther() throws Exception {
        for (boolean senderEnds : new boolean[] {true, false}) {
            Ends ends = pipe(WirePipe.Settings.DEFAULT.withBufferBytes(10));
            ends.sender.send(tensor(new Random(1), Tensor.Type.U8, 64 << 20), LONG);
            FutureTask<Boolean> sending = background(() -> {
                ends.sender.send(empty(), LONG);
                return true;
            });
            assertThatThrownBy(() -> sending.get(100, TimeUnit.MILLISECONDS)).isInstanceOf(TimeoutException.class);
            (senderEnds ? ends.sender : ends.receiver).close();
            assertThatThrownBy(() -> result(sending)).isInstanceOf(PipeException.class);
            assertThatThrownBy(() -> {
                        ends.receiver.receive(TensorMemory.HOST, LONG);
                        ends.receiver.receive(TensorMemory.HOST, LONG);
                    })
                    .isInstanceOf(PipeException.class);
        }
    }

    @Test
    void aTensorAboveTheBoundIsNeitherSentNorReceived() throws Exception {
        Wire[] wires = wires();
        Pipe sender = WirePipe.sender(wires[0], WirePipe.Settings.DEFAULT, Ticker.system());
        opened.add(sender);
        Pipe receiver = WirePipe.receiver(wires[1], WirePipe.Settings.DEFAULT.withTensorBytes(1000), Ticker.system());
        opened.add(receiver);
        sender.send(tensor(new Random(1), Tensor.Type.U8, 1001), LONG);
        assertThatThrownBy(() -> receiver.receive(TensorMemory.HOST, LONG))
                .hasMessageContaining("at most 1000 are taken");
        assertThatThrownBy(() -> pipe(WirePipe.Settings.DEFAULT.withTensorBytes(1000))
                        .sender
                        .send(tensor(new Random(1), Tensor.Type.U8, 1001), LONG))
                .isInstanceOf(IllegalArgumentException.class);
    }

    private Tensor tensor(Random random, Tensor.Type type, long... shape) {
        List<Long> sizes = Arrays.stream(shape).boxed().toList();
        byte[] content = new byte[Math.toIntExact(Tensor.bytes(type, sizes))];
        random.nextBytes(content);
        MemorySegment data = arena.allocate(Math.max(1, content.length)).asSlice(0, content.length);
        return new Tensor(type, sizes, data.copyFrom(MemorySegment.ofArray(content)));
    }

    static void assertSame(Tensor came, Tensor sent) {
        assertThat(came.type()).isEqualTo(sent.type());
        assertThat(came.shape()).isEqualTo(sent.shape());
        assertThat(came.data().host().mismatch(sent.data().host())).isEqualTo(-1);
    }
}
