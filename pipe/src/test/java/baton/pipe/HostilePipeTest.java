package baton.pipe;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.Ticker;
import baton.pipe.memory.MemoryTransport;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** Peers that break the rules end the pipe with a reason, and nothing is allocated for what they announce. */
class HostilePipeTest {
    private static final Duration LONG = Duration.ofSeconds(60);
    private static final long MOST = 1 << 20;
    private static final WirePipe.Settings SETTINGS = WirePipe.Settings.DEFAULT.withTensorBytes(MOST);

    @Test
    void anyHeaderEndsThePipeOrIsATensorWithinTheBound() throws Exception {
        long seed = Long.getLong("tests.seed", System.nanoTime());
        System.out.println("-Dtests.seed=" + seed);
        Random random = new Random(seed);
        for (int i = 0; i < 2000; i++) {
            try (Arena arena = Arena.ofShared()) {
                MemorySegment header = header(arena, random);
                damage(header, random);
                Optional<PipeFrame> read = read(header);
                try (MemoryTransport transport = new MemoryTransport();
                        Wire peer = receiver(transport, arena, header, read)) {
                    assertThat(peer).isNotNull();
                }
            }
        }
    }

    private static Optional<PipeFrame> read(MemorySegment header) {
        try {
            return Optional.of(PipeFrame.read(header, MOST));
        } catch (PipeException e) {
            return Optional.empty();
        }
    }

    private static Wire receiver(MemoryTransport transport, Arena arena, MemorySegment header, Optional<PipeFrame> read)
            throws Exception {
        Wire[] wires = TestWires.offered(transport);
        wires[0].send(header, LONG);
        try (Pipe receiver = WirePipe.receiver(wires[1], SETTINGS, Ticker.system())) {
            if (read.isPresent() && read.get() instanceof PipeFrame.Announced announced && announced.number() == 0) {
                assertThat(announced.bytes()).isBetween(0L, MOST);
                wires[0].close();
                if (announced.bytes() > 0) {
                    assertThatThrownBy(() -> receiver.receive(arena, LONG)).isInstanceOf(PipeException.class);
                }
            } else if (read.isPresent() && read.get() instanceof PipeFrame.Nothing(long number) && number == 0) {
                assertThat(receiver.receive(arena, LONG)).isEmpty();
            } else if (read.isPresent() && read.get() instanceof PipeFrame.Alive) {
                assertThatThrownBy(() -> receiver.receive(arena, Duration.ofMillis(1)))
                        .hasMessageContaining("nothing came");
            } else {
                assertThatThrownBy(() -> receiver.receive(arena, LONG))
                        .isInstanceOf(PipeException.class)
                        .hasMessageContaining("the pipe has ended: ");
            }
        }
        return wires[0];
    }

    private static MemorySegment header(Arena arena, Random random) {
        MemorySegment header = arena.allocate(PipeFrame.BYTES);
        List<Long> shape = List.of(1L + random.nextInt(4), 1L + random.nextInt(4));
        PipeFrame frame = switch (random.nextInt(4)) {
            case 0 -> new PipeFrame.Alive();
            case 1 -> new PipeFrame.Nothing(random.nextInt(2));
            case 2 -> new PipeFrame.Taken(random.nextInt(2));
            default -> new PipeFrame.Announced(0, Tensor.Type.F32, shape, Tensor.bytes(Tensor.Type.F32, shape));
        };
        frame.write(header);
        return header;
    }

    private static void damage(MemorySegment header, Random random) {
        for (int i = random.nextInt(4); i > 0; i--) {
            int at = random.nextInt(PipeFrame.BYTES);
            if (random.nextBoolean()) {
                header.set(ValueLayout.JAVA_BYTE, at, (byte) random.nextInt(256));
            } else {
                long[] extremes = {-1, Long.MAX_VALUE, Long.MIN_VALUE, 1L << 40, 1L << 62, 0};
                header.set(PipeFrame.Format.LONG, 8L * random.nextInt(11), extremes[random.nextInt(extremes.length)]);
            }
        }
    }

    @Test
    void hugeAnnouncementsAreRefusedByWhatIsWrong() throws Exception {
        long[][] cases = {{1L << 40}, {1L << 32, 1L << 32}, {-1}, {Long.MAX_VALUE, 2}, {0, -5}};
        for (long[] sizes : cases) {
            try (Arena arena = Arena.ofShared();
                    MemoryTransport transport = new MemoryTransport()) {
                MemorySegment header = arena.allocate(PipeFrame.BYTES);
                List<Long> shape = Arrays.stream(sizes).boxed().toList();
                new PipeFrame.Announced(0, Tensor.Type.U8, shape, shape.getFirst()).write(header);
                Wire[] wires = TestWires.offered(transport);
                wires[0].send(header, LONG);
                try (Pipe receiver = WirePipe.receiver(wires[1], SETTINGS, Ticker.system())) {
                    assertThatThrownBy(() -> receiver.receive(arena, LONG))
                            .isInstanceOf(PipeException.class)
                            .hasMessageContaining("a tensor");
                }
            }
        }
    }

    @Test
    void anAcknowledgementOfTensorsThatWereNeverSentEndsThePipe() throws Exception {
        for (PipeFrame lie :
                List.of(new PipeFrame.Taken(2), new PipeFrame.Nothing(0), new PipeFrame.Taken(Long.MAX_VALUE))) {
            try (Arena arena = Arena.ofShared();
                    MemoryTransport transport = new MemoryTransport()) {
                Wire[] wires = TestWires.offered(transport);
                try (Pipe sender = WirePipe.sender(wires[0], SETTINGS.withBufferBytes(10), Ticker.system())) {
                    sender.send(Optional.empty(), LONG);
                    MemorySegment header = arena.allocate(PipeFrame.BYTES);
                    lie.write(header);
                    wires[1].send(header, LONG);
                    assertThatThrownBy(() -> sender.send(Optional.empty(), LONG))
                            .isInstanceOf(PipeException.class)
                            .hasMessageContaining("the receiver s");
                }
            }
        }
    }

    @Test
    void invalidLookupMessagesEndTheBuffer() throws Exception {
        long seed = Long.getLong("tests.seed", System.nanoTime());
        System.out.println("-Dtests.seed=" + seed);
        Random random = new Random(seed);
        for (int i = 0; i < 300; i++) {
            try (Arena arena = Arena.ofShared();
                    MemoryTransport transport = new MemoryTransport()) {
                Wire[] requests = TestWires.offered(transport);
                Wire[] answers = TestWires.offered(transport);
                LookupBuffer producer = LookupBuffers.producer(
                        WirePipe.receiver(requests[0], SETTINGS, Ticker.system()),
                        WirePipe.sender(answers[0], SETTINGS, Ticker.system()),
                        new LookupBuffer.Settings(MOST, LONG),
                        Ticker.system());
                try (Pipe hostile = WirePipe.sender(requests[1], SETTINGS, Ticker.system());
                        Pipe unread = WirePipe.receiver(answers[1], SETTINGS, Ticker.system());
                        producer) {
                    long count = random.nextInt(9);
                    MemorySegment data =
                            arena.allocate(8 * Math.max(1, count), 8).asSlice(0, 8 * count);
                    for (int at = 0; at < count; at++) {
                        data.setAtIndex(ValueLayout.JAVA_LONG, at, 2 + random.nextLong(Long.MAX_VALUE - 2));
                    }
                    hostile.send(Optional.of(new Tensor(Tensor.Type.I64, List.of(count), data)), LONG);
                    assertThatThrownBy(() -> {
                                LookupBuffer.Entry entry = entry(arena);
                                for (int n = 0; n < 1_000_000; n++) {
                                    producer.insert(entry, LONG);
                                }
                            })
                            .isInstanceOf(PipeException.class)
                            .hasMessageContaining("a lookup buffer's message");
                    assertThatThrownBy(() -> unread.receive(arena, LONG)).isInstanceOf(PipeException.class);
                }
            }
        }
    }

    private static LookupBuffer.Entry entry(Arena arena) {
        Tensor tensor = new Tensor(Tensor.Type.U8, List.of(100_000L), arena.allocate(100_000));
        return new LookupBuffer.Entry(new int[] {1}, new boolean[] {true}, tensor, tensor, tensor);
    }
}
