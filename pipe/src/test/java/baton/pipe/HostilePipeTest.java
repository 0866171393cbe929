package baton.pipe;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.KvDigest;
import baton.kv.Ticker;
import baton.memory.Crc32c;
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

/** Peers that break the rules end the pipe with a reason, and nothing is allocated for announced bytes. */
class HostilePipeTest {
    private static final Duration LONG = Duration.ofSeconds(60);
    private static final long MOST = 1 << 20;
    private static final long ENTRY_BYTES = 100_000;
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
                PipeFrame.seal(header);
                Optional<PipeFrame> read = read(header);
                try (MemoryTransport transport = new MemoryTransport();
                        Wire peer = receiver(transport, header, read)) {
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

    private static Wire receiver(MemoryTransport transport, MemorySegment header, Optional<PipeFrame> read)
            throws Exception {
        Wire[] wires = TestWires.offered(transport);
        wires[0].send(header, LONG);
        try (Pipe receiver = WirePipe.receiver(wires[1], SETTINGS, Ticker.system())) {
            if (read.isPresent() && read.get() instanceof PipeFrame.Announced announced && announced.number() == 0) {
                assertThat(announced.bytes()).isBetween(0L, MOST);
                wires[0].close();
                if (announced.bytes() > 0) {
                    assertThatThrownBy(() -> receiver.receive(TensorMemory.HOST, LONG))
                            .isInstanceOf(PipeException.class);
                }
            } else if (read.isPresent() && read.get() instanceof PipeFrame.Alive) {
                assertThatThrownBy(() -> receiver.receive(TensorMemory.HOST, Duration.ofMillis(1)))
                        .hasMessageContaining("nothing came");
            } else {
                assertThatThrownBy(() -> receiver.receive(TensorMemory.HOST, LONG))
                        .isInstanceOf(PipeException.class)
                        .hasMessageContaining("the pipe has ended: ");
            }
        }
        return wires[0];
    }

    private static MemorySegment header(Arena arena, Random random) {
        MemorySegment header = arena.allocate(PipeFrame.BYTES);
        List<Long> shape = List.of(1L + random.nextInt(4), 1L + random.nextInt(4));
        PipeFrame frame = switch (random.nextInt(3)) {
            case 0 -> new PipeFrame.Alive();
            case 1 -> new PipeFrame.Taken(random.nextInt(2));
            default ->
                new PipeFrame.Announced(
                        0, Tensor.Type.F32, shape, Tensor.bytes(Tensor.Type.F32, shape), KvDigest.CRC32C, 0);
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
    void anyFlippedBitOfAFrameIsNoticed() {
        try (Arena arena = Arena.ofConfined()) {
            for (PipeFrame frame : List.of(
                    new PipeFrame.Alive(),
                    new PipeFrame.Taken(1),
                    new PipeFrame.Announced(2, Tensor.Type.U8, List.of(4L, 8L), 32, KvDigest.SUM61, 0x01020304))) {
                for (int bit = 0; bit < Byte.SIZE * PipeFrame.BYTES; bit++) {
                    MemorySegment header = arena.allocate(PipeFrame.BYTES);
                    frame.write(header);
                    int at = bit / Byte.SIZE;
                    header.set(ValueLayout.JAVA_BYTE, at, (byte)
                            (header.get(ValueLayout.JAVA_BYTE, at) ^ 1 << bit % Byte.SIZE));
                    assertThatThrownBy(() -> PipeFrame.read(header, MOST)).isInstanceOf(PipeException.class);
                }
            }
        }
    }

    /** The tensors after a damaged one are received as if nothing had happened. */
    @Test
    void aDamagedTensorFailsAlone() throws Exception {
        try (Arena arena = Arena.ofShared();
                MemoryTransport transport = new MemoryTransport()) {
            Wire[] wires = TestWires.offered(transport);
            MemorySegment bytes = arena.allocate(1000).fill((byte) 7);
            int checksum = Crc32c.of(bytes);
            bytes.set(ValueLayout.JAVA_BYTE, 500, (byte) 6);
            MemorySegment header = arena.allocate(PipeFrame.BYTES);
            try (Pipe receiver = WirePipe.receiver(wires[1], SETTINGS, Ticker.system())) {
                for (int number = 0; number < 2; number++) {
                    new PipeFrame.Announced(number, Tensor.Type.U8, List.of(1000L), 1000, KvDigest.CRC32C, checksum)
                            .write(header);
                    wires[0].send(header, LONG);
                    wires[0].send(bytes, LONG);
                    bytes.set(ValueLayout.JAVA_BYTE, 500, (byte) 7);
                }
                assertThatThrownBy(() -> receiver.receive(TensorMemory.HOST, LONG))
                        .isInstanceOf(DamagedTensorException.class)
                        .hasMessageContaining("uint8[1000] was damaged on its way");
                assertThat(receiver.receive(TensorMemory.HOST, LONG)
                                .data()
                                .host()
                                .mismatch(bytes))
                        .isEqualTo(-1);
            }
        }
    }

    @Test
    void hugeAnnouncementsAreRefusedWithTheReason() throws Exception {
        long[][] cases = {{1L << 40}, {1L << 32, 1L << 32}, {-1}, {Long.MAX_VALUE, 2}, {0, -5}};
        for (long[] sizes : cases) {
            try (Arena arena = Arena.ofShared();
                    MemoryTransport transport = new MemoryTransport()) {
                MemorySegment header = arena.allocate(PipeFrame.BYTES);
                List<Long> shape = Arrays.stream(sizes).boxed().toList();
                new PipeFrame.Announced(0, Tensor.Type.U8, shape, shape.getFirst(), KvDigest.SUM61, 0).write(header);
                Wire[] wires = TestWires.offered(transport);
                wires[0].send(header, LONG);
                try (Pipe receiver = WirePipe.receiver(wires[1], SETTINGS, Ticker.system())) {
                    assertThatThrownBy(() -> receiver.receive(TensorMemory.HOST, LONG))
                            .isInstanceOf(PipeException.class)
                            .hasMessageContaining("a tensor");
                }
            }
        }
    }

    @Test
    void anAcknowledgementOfTensorsThatWereNeverSentEndsThePipe() throws Exception {
        PipeFrame announced = new PipeFrame.Announced(0, Tensor.Type.U8, List.of(0L), 0, KvDigest.CRC32C, 0);
        for (PipeFrame lie : List.of(new PipeFrame.Taken(2), announced, new PipeFrame.Taken(Long.MAX_VALUE))) {
            try (Arena arena = Arena.ofShared();
                    MemoryTransport transport = new MemoryTransport()) {
                Wire[] wires = TestWires.offered(transport);
                try (Pipe sender = WirePipe.sender(wires[0], SETTINGS.withBufferBytes(10), Ticker.system())) {
                    sender.send(TensorMemory.HOST.allocate(Tensor.Type.U8, List.of(0L)), LONG);
                    MemorySegment header = arena.allocate(PipeFrame.BYTES);
                    lie.write(header);
                    wires[1].send(header, LONG);
                    assertThatThrownBy(() -> sender.send(TensorMemory.HOST.allocate(Tensor.Type.U8, List.of(0L)), LONG))
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
                    hostile.send(new Tensor(Tensor.Type.I64, List.of(count), data), LONG);
                    assertThatThrownBy(() -> {
                                LookupBuffer.Entry entry = entry(arena);
                                for (int n = 0; n < 1_000_000; n++) {
                                    producer.insert(entry, LONG);
                                }
                            })
                            .isInstanceOf(PipeException.class)
                            .hasMessageContaining("a lookup buffer's message");
                    assertThatThrownBy(() -> unread.receive(TensorMemory.HOST, LONG))
                            .isInstanceOf(PipeException.class);
                }
            }
        }
    }

    /** Keys, values or hidden states: the lookup of the entry fails, a later one gets its own. */
    @Test
    void aDamagedEntryFailsItsLookupAlone() throws Exception {
        for (int part = 0; part < 3; part++) {
            try (Arena arena = Arena.ofShared();
                    MemoryTransport transport = new MemoryTransport()) {
                Wire[] requests = TestWires.offered(transport);
                Wire[] answers = TestWires.offered(transport);
                try (LookupBuffer producer = LookupBuffers.producer(
                                WirePipe.receiver(requests[0], SETTINGS, Ticker.system()),
                                WirePipe.sender(answers[0], SETTINGS, Ticker.system()),
                                new LookupBuffer.Settings(MOST, LONG),
                                Ticker.system());
                        LookupBuffer consumer = LookupBuffers.consumer(
                                WirePipe.sender(requests[1], SETTINGS, Ticker.system()),
                                WirePipe.receiver(new Flipping(answers[1], part), SETTINGS, Ticker.system()),
                                TensorMemory.HOST,
                                Ticker.system())) {
                    LookupBuffer.Entry entry = entry(arena);
                    producer.insert(entry, LONG);
                    producer.insert(entry, LONG);
                    assertThatThrownBy(() -> consumer.dropSelect(entry.tokens(), entry.roi(), LONG))
                            .isInstanceOf(DamagedTensorException.class);
                    try (LookupBuffer.Entry taken = consumer.dropSelect(entry.tokens(), entry.roi(), LONG)
                            .orElseThrow()) {
                        PipeContract.assertSame(taken.key(), entry.key());
                    }
                }
            }
        }
    }

    /** Flips a bit of one large tensor that it receives. */
    private static final class Flipping implements Wire {
        private final Wire wire;
        private int left;

        Flipping(Wire wire, int before) {
            this.wire = wire;
            this.left = before;
        }

        @Override
        public void send(TensorBytes bytes, Duration timeout) throws PipeException {
            wire.send(bytes, timeout);
        }

        @Override
        public void receive(TensorBytes into, Duration timeout) throws PipeException {
            wire.receive(into, timeout);
            if (into.byteSize() == ENTRY_BYTES && left-- == 0) {
                MemorySegment bytes = into.host();
                bytes.set(ValueLayout.JAVA_BYTE, 0, (byte) (bytes.get(ValueLayout.JAVA_BYTE, 0) ^ 1));
            }
        }

        @Override
        public void close() {
            wire.close();
        }
    }

    private static LookupBuffer.Entry entry(Arena arena) {
        Tensor tensor = new Tensor(Tensor.Type.U8, List.of(ENTRY_BYTES), arena.allocate(ENTRY_BYTES));
        return new LookupBuffer.Entry(new int[] {1}, new boolean[] {true}, tensor, tensor, tensor);
    }
}
