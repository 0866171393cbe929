package baton.transfer.embedded;

import static org.assertj.core.api.Assertions.assertThat;

import baton.transfer.Region;
import baton.transfer.TransferAgent.Permit;
import baton.transfer.TransferAgent.Span;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Isolated;

/**
 * Random frames after Hello of a peer that knows the secret: whole conversations of valid frames, some of them damaged, with tokens of
 * permits that are open, closed and made up. It may write where it has a permit, and nowhere else; the agent serves on and keeps nothing.
 * {@code -Dtests.conversations=N} runs more, {@code -Dtests.seed=N} other ones.
 */
@Isolated("It counts the open files of the process.")
class InsiderFuzzTest {
    private static final int CONVERSATIONS = Integer.getInteger("tests.conversations", 400);
    private static final EmbeddedAgent.Limits LIMITS = new EmbeddedAgent.Limits(64, 16, 100, 1000, 100_000);
    private static final Duration LONG = Duration.ofMinutes(2);
    private static final int BYTES = 1 << 18;

    /** The permit's range: a page behind the beginning. */
    private static final int PERMITTED = 4096;

    private final long seed = Long.getLong("tests.seed", new Random().nextLong());
    private final Random random = new Random(seed);

    @Test
    void nothingIsWrittenWithoutAPermitAndNothingIsKept() throws Exception {
        try (Arena arena = Arena.ofShared();
                EmbeddedAgent agent = EmbeddedAgent.open(
                        "target", EmbeddedAgent.Settings.at("127.0.0.1").withLimits(LIMITS))) {
            MemorySegment memory = arena.allocate(BYTES, 64);
            agent.register(new Region(memory, Optional.empty()).withPermitsOnly());
            MemorySegment allowed = memory.asSlice(PERMITTED, PERMITTED);
            Permit closed = agent.permit(List.of(new Span(memory.address(), memory.byteSize())))
                    .orElseThrow();
            closed.close();
            try (EmbeddedAgent honest = EmbeddedAgent.open("honest", EmbeddedAgent.Settings.at("127.0.0.1"))) {
                HonestPeer.reads(honest, agent, memory);
                // The first ones open files that this process keeps, such as its pollers.
                for (int i = 0; i < 20; i++) {
                    conversation(agent, memory, new long[] {0});
                }
                long filesBefore = openFiles();
                try (Permit permit = agent.permit(List.of(new Span(allowed.address(), allowed.byteSize())))
                        .orElseThrow()) {
                    for (int i = 0; i < CONVERSATIONS; i++) {
                        conversation(agent, memory, new long[] {permit.token(), closed.token(), 0, random.nextLong()});
                        agent.takeNotifications();
                    }
                }
                assertThat(allowed.mismatch(arena.allocate(PERMITTED)))
                        .as("something was written with the permit, seed %d", seed)
                        .isNotEqualTo(-1);
                MemorySegment written = arena.allocate(PERMITTED, 64).copyFrom(allowed);
                conversation(agent, memory, new long[] {closed.token()});
                assertThat(allowed.mismatch(written)).as("seed %d", seed).isEqualTo(-1);
                allowed.fill((byte) 0);
                for (long at = 0; at < BYTES; at += Long.BYTES) {
                    assertThat(memory.get(ValueLayout.JAVA_LONG, at))
                            .as("byte %d, seed %d", at, seed)
                            .isZero();
                }
                HonestPeer.reads(honest, agent, memory);
                long deadline = System.nanoTime() + LONG.toNanos();
                while (openFiles() > filesBefore) {
                    assertThat(System.nanoTime())
                            .as("%d files, %d before: connections end in time", openFiles(), filesBefore)
                            .isLessThan(deadline);
                    LockSupport.parkNanos(1_000_000);
                }
            }
        }
    }

    private static long openFiles() throws IOException {
        try (Stream<Path> files = Files.list(Path.of("/proc/self/fd"))) {
            return files.count();
        }
    }

    private void conversation(EmbeddedAgent agent, MemorySegment memory, long[] tokens) throws Exception {
        Metadata metadata = Metadata.parse(agent.metadata());
        Metadata own = new Metadata("insider", "nowhere", 1, "127.0.0.1", 1, new byte[32], 1, List.of());
        try (Socket socket =
                new Socket(InetAddress.getLoopbackAddress(), agent.listening().getPort())) {
            socket.setSoTimeout((int) LONG.toMillis());
            socket.getOutputStream()
                    .write(new Frame.Hello(metadata.secret(), agent.name(), own.bytes())
                            .encode()
                            .array());
            Thread reader = Thread.startVirtualThread(() -> drain(socket));
            List<byte[]> frames = frames(memory, tokens);
            try {
                ByteArrayOutputStream together = new ByteArrayOutputStream();
                for (byte[] frame : frames) {
                    together.write(frame);
                    if (random.nextInt(3) == 0) {
                        socket.getOutputStream().write(together.toByteArray());
                        together.reset();
                    }
                }
                socket.getOutputStream().write(together.toByteArray());
                if (random.nextBoolean()) {
                    socket.shutdownOutput();
                    assertThat(reader.join(LONG)).as("hangs up, seed %d", seed).isTrue();
                }
            } catch (IOException e) {
                // The agent has hung up before all was sent.
                assertThat(reader.join(LONG)).as("hangs up, seed %d", seed).isTrue();
            }
        }
    }

    private static void drain(Socket socket) {
        byte[] rest = new byte[4096];
        try {
            while (socket.getInputStream().read(rest) >= 0) {
                // The answer does not matter here.
            }
        } catch (IOException e) {
            // Ended all the same.
        }
    }

    private List<byte[]> frames(MemorySegment memory, long[] tokens) {
        List<byte[]> frames = new ArrayList<>();
        List<long[]> writes = new ArrayList<>();
        int count = 1 + random.nextInt(40);
        for (int id = 1; id <= count; id++) {
            byte[] frame = switch (random.nextInt(12)) {
                case 0, 1 -> bytes(new Frame.Read(someId(id), timeout(), ranges(memory, 2)));
                case 2, 3, 4 -> {
                    long[] ranges = ranges(memory, 3);
                    long bytes = 0;
                    for (int i = 2; i < ranges.length; i += 3) {
                        bytes += ranges[i];
                    }
                    long chosen = someId(id);
                    writes.add(new long[] {chosen, bytes});
                    yield bytes(new Frame.Write(
                            chosen, timeout(), tokens[random.nextInt(tokens.length)], random.nextInt(4) == 0, ranges));
                }
                case 5, 6, 7 -> data(writes, id);
                case 8 -> bytes(new Frame.Cancel(someId(id)));
                case 9 -> bytes(new Frame.Notify(noise(random.nextInt(LIMITS.messageBytes()))));
                case 10 ->
                    bytes(new Frame.Regions(new Metadata.Update(
                            random.nextInt(5),
                            random.nextBoolean()
                                    ? List.of()
                                    : List.of(new Metadata.Exposed(
                                            random.nextLong(),
                                            1 + random.nextInt(1 << 20),
                                            random.nextInt(),
                                            random.nextInt())))));
                default ->
                    random.nextBoolean()
                            ? bytes(new Frame.Ping())
                            : random.nextBoolean()
                                    ? bytes(new Frame.Pong())
                                    : bytes(new Frame.Result(id, Optional.empty()));
            };
            if (random.nextInt(25) == 0) {
                frame[random.nextInt(frame.length)] ^= (byte) (1 << random.nextInt(8));
            }
            frames.add(frame);
        }
        return frames;
    }

    /** Of a write that was announced, all, some or too much of it; sometimes of none. */
    private byte[] data(List<long[]> writes, int id) {
        long[] write = writes.isEmpty() ? new long[] {id, 10} : writes.get(random.nextInt(writes.size()));
        int length = Math.clamp(random.nextInt(8) == 0 ? write[1] + 1 : write[1], 0, 20_000);
        if (random.nextInt(4) == 0) {
            length = random.nextInt(length + 1);
        }
        byte[] data = noise(length);
        return ByteBuffer.allocate(Frame.HEADER_BYTES + length)
                .put(Frame.dataHeader(write[0], length))
                .put(data)
                .array();
    }

    private long someId(int id) {
        return random.nextInt(8) == 0 ? random.nextInt(id + 1) : id;
    }

    private long timeout() {
        return switch (random.nextInt(6)) {
            case 0 -> 0;
            case 1 -> random.nextLong();
            default -> 1 + random.nextInt(2000);
        };
    }

    /** Ranges, of which the last two numbers are an address in the memory asked and bytes; most of them within the permitted range. */
    private long[] ranges(MemorySegment memory, int numbers) {
        int count = 1 + random.nextInt(4);
        long[] ranges = new long[count * numbers];
        for (int i = 0; i < ranges.length; i += numbers) {
            ranges[i] = random.nextLong();
            boolean inside = random.nextInt(5) > 0;
            long offset = inside ? PERMITTED + random.nextInt(PERMITTED / 2) : random.nextInt(2 * BYTES) - BYTES / 2;
            ranges[i + numbers - 2] = memory.address() + offset;
            ranges[i + numbers - 1] =
                    random.nextInt(20) == 0 ? random.nextLong() : 1 + random.nextInt(inside ? PERMITTED / 2 : 10_000);
        }
        return ranges;
    }

    private static byte[] bytes(Frame frame) {
        return frame.encode().array();
    }

    private byte[] noise(int length) {
        byte[] bytes = new byte[length];
        random.nextBytes(bytes);
        return bytes;
    }
}
