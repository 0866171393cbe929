package baton.transfer.embedded;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.JsonFields;
import baton.messages.PeerAccess;
import baton.messages.SealedChannel;
import baton.transfer.Region;
import baton.transfer.Transfer.Cause;
import baton.transfer.TransferException;
import java.io.IOException;
import java.io.InputStream;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.InetAddress;
import java.net.Socket;
import java.net.SocketException;
import java.net.SocketTimeoutException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Frames byte by byte, and an agent's handling of wrong ones. */
class HostilePeerTest {
    private static final EmbeddedAgent.Limits LIMITS = new EmbeddedAgent.Limits(64, 16, 100, 1000, 100_000);
    private static final Duration LONG = Duration.ofMinutes(2);
    private static final int BYTES = 1 << 20;

    private final long seed = Long.getLong("tests.seed", new Random().nextLong());
    private final Random random = new Random(seed);
    private final Arena arena = Arena.ofShared();
    private EmbeddedAgent agent;
    private MemorySegment memory;
    private Metadata metadata;

    @BeforeEach
    void open() throws TransferException {
        agent = EmbeddedAgent.open(
                "target", EmbeddedAgent.Settings.at("127.0.0.1").withLimits(LIMITS));
        memory = arena.allocate(BYTES, 64);
        agent.register(new Region(memory, Optional.empty()));
        metadata = Metadata.parse(agent.metadata());
    }

    /** Whatever was sent: memory is as it was and the agent still serves. */
    @AfterEach
    void theAgentStillServesAnHonestPeer() throws TransferException {
        assertThat(memory.asSlice(1).mismatch(memory.asSlice(0, BYTES - 1))).isEqualTo(-1);
        assertThat(memory.get(ValueLayout.JAVA_BYTE, 0)).isZero();
        memory.fill((byte) 9);
        try (EmbeddedAgent honest = EmbeddedAgent.open("honest", EmbeddedAgent.Settings.at("127.0.0.1"))) {
            HonestPeer.reads(honest, agent, memory);
        }
        agent.close();
        arena.close();
    }

    private byte[] hello(byte[] secret, String name) {
        Metadata own = new Metadata("hostile", "nowhere", 1, "127.0.0.1", 1, new byte[32], 1, List.of());
        return new Frame.Hello(secret, name, own.bytes()).encode().array();
    }

    /** A connection that was let in. */
    private Socket insider() throws IOException {
        Socket socket = socket();
        socket.getOutputStream().write(hello(metadata.secret(), agent.name()));
        assertThat(header(socket.getInputStream())).isEqualTo(new Frame.Header((byte) 2, 0, 0));
        Frame.Header regions = header(socket.getInputStream());
        assertThat(regions.type()).isEqualTo((byte) 11);
        socket.getInputStream().readNBytes(regions.length());
        return socket;
    }

    private Socket socket() throws IOException {
        Socket socket =
                new Socket(InetAddress.getLoopbackAddress(), agent.listening().getPort());
        socket.setSoTimeout(30_000);
        return socket;
    }

    private static Frame.Header header(InputStream in) throws IOException {
        try {
            return Frame.header(ByteBuffer.wrap(in.readNBytes(Frame.HEADER_BYTES)), LIMITS);
        } catch (TransferException e) {
            throw new IOException(e);
        }
    }

    private static boolean isEnded(Socket socket) throws IOException {
        try {
            byte[] rest = new byte[4096];
            while (socket.getInputStream().read(rest) >= 0) {
                // Earlier frames.
            }
            return true;
        } catch (SocketTimeoutException _) {
            return false;
        } catch (SocketException _) {
            return true;
        }
    }

    @Test
    void anAgentWithoutTheSecretIsRefused() throws IOException {
        byte[] wrong = metadata.secret().clone();
        wrong[31] ^= 1;
        try (Socket socket = socket()) {
            socket.getOutputStream().write(hello(wrong, agent.name()));
            assertThat(header(socket.getInputStream()).type()).isEqualTo((byte) 3);
            assertThat(isEnded(socket)).isTrue();
        }
    }

    @Test
    void aStrangerGetsNoAnswerWhereThereIsASecret(@TempDir Path directory) throws Exception {
        Path file = Files.writeString(directory.resolve("secret"), "0123456789abcdef");
        PeerAccess access = PeerAccess.of(
                JsonFields.parse("extra", "{\"kv_auth_secret_file\": \"" + file + "\"}"),
                "host",
                "127.0.0.1",
                List.of());
        try (EmbeddedAgent guarded = EmbeddedAgent.open(
                        "guarded", EmbeddedAgent.Settings.at("127.0.0.1").withAccess(Optional.of(access)));
                Socket socket = new Socket(
                        InetAddress.getLoopbackAddress(), guarded.listening().getPort())) {
            socket.setSoTimeout(30_000);
            byte[] preamble = socket.getInputStream().readNBytes(SealedChannel.PREAMBLE_BYTES);
            assertThat(preamble).startsWith("baton-sealed".getBytes(StandardCharsets.US_ASCII));
            socket.getOutputStream().write(hello(new byte[32], "a guess"));
            assertThat(socket.getInputStream().readAllBytes()).isEmpty();
            assertThat(access.takeRefused()).isEqualTo(1);
        }
    }

    @Test
    void anotherAgentAtTheSameAddressIsNotTakenForTheOneWanted() throws TransferException {
        try (EmbeddedAgent other = EmbeddedAgent.open("other", EmbeddedAgent.Settings.at("127.0.0.1"))) {
            byte[] stale = new Metadata(
                            "gone-0123",
                            metadata.system(),
                            metadata.pid(),
                            metadata.host(),
                            metadata.port(),
                            metadata.secret(),
                            1,
                            List.of())
                    .bytes();
            assertThatThrownBy(() -> other.connect(stale, LONG))
                    .isInstanceOf(TransferException.class)
                    .hasMessageContaining("the agent here is " + agent.name() + ", not gone-0123");
        }
    }

    @Test
    void rangesOutsideRegisteredMemoryAreRefused() throws IOException {
        long start = memory.address();
        long[][] outside = {
            {start - 1, 2},
            {start, BYTES + 1L},
            {start + BYTES - 1, 2},
            {start + BYTES, 1},
            {0, 1},
            {-1, 1},
            {start, 0},
            {start, -1},
            {start, Long.MAX_VALUE},
            {start, Long.MIN_VALUE},
            {Long.MAX_VALUE, Long.MAX_VALUE},
            {Long.MIN_VALUE, 1}
        };
        try (Socket socket = insider()) {
            long id = 0;
            for (long[] range : outside) {
                socket.getOutputStream()
                        .write(new Frame.Read(++id, 1000, new long[] {start, 1, range[0], range[1]})
                                .encode()
                                .array());
                assertThat(refusal(socket, id)).isEqualTo(Cause.REFUSED);
                for (boolean mapped : new boolean[] {false, true}) {
                    socket.getOutputStream()
                            .write(new Frame.Write(++id, 1000, 0, mapped, new long[] {start, range[0], range[1]})
                                    .encode()
                                    .array());
                    assertThat(refusal(socket, id)).isEqualTo(Cause.REFUSED);
                }
            }
        }
    }

    private static Cause refusal(Socket socket, long id) throws IOException {
        Frame.Header header = header(socket.getInputStream());
        assertThat(header.type()).isEqualTo((byte) 7);
        assertThat(header.id()).isEqualTo(id);
        try {
            ByteBuffer payload = ByteBuffer.wrap(socket.getInputStream().readNBytes(header.length()));
            Frame.Result result = (Frame.Result) Frame.decode(header, payload);
            return result.failure().orElseThrow().cause().orElseThrow();
        } catch (TransferException e) {
            throw new IOException(e);
        }
    }

    /** A line of each would fill the disk. */
    @Test
    void connectionsThatArePastCountingHaveALineTogether() throws IOException {
        for (int i = 0; i < 20; i++) {
            try (Socket socket = insider()) {
                socket.getOutputStream().write(frame(99, 0, 0));
                assertThat(isEnded(socket)).isTrue();
            }
        }
        assertThat(agent.complaints().rest()).as("without a line of their own").isPositive();
    }

    @Test
    void aPeerThatBreaksTheProtocolIsDisconnected() throws IOException {
        List<byte[]> wrong = new ArrayList<>();
        wrong.add(frame(99, 0, 0));
        wrong.add(frame(-1, 0, 0));
        // Longer than anything of that type may be.
        wrong.add(frame(4, LIMITS.messageBytes() + 1, 0));
        wrong.add(frame(5, Integer.MAX_VALUE, 0));
        wrong.add(frame(6, -1, 0));
        wrong.add(frame(0, Frame.MOST_DATA_BYTES + 1, 0));
        wrong.add(frame(9, 1, 0));
        // Frames that only the other side may send.
        wrong.add(new Frame.Welcome().encode().array());
        wrong.add(new Frame.Result(1, Optional.empty()).encode().array());
        wrong.add(hello(metadata.secret(), agent.name()));
        // Half a range.
        wrong.add(concat(frame(5, 16, 1), new byte[16]));
        // Twice the same id.
        byte[] read = new Frame.Write(7, 10_000, 0, false, new long[] {1, memory.address(), 10})
                .encode()
                .array();
        wrong.add(concat(read, read));
        // More data than was announced.
        wrong.add(concat(read, concat(frame(0, 11, 7), new byte[11])));
        for (byte[] bytes : wrong) {
            try (Socket socket = insider()) {
                socket.getOutputStream().write(bytes);
                assertThat(isEnded(socket))
                        .as(Arrays.toString(Arrays.copyOf(bytes, 16)))
                        .isTrue();
            }
        }
    }

    @Test
    void tooManyUntakenNotificationsEndTheConnection() throws IOException {
        try (Socket socket = insider()) {
            byte[] message =
                    new Frame.Notify(new byte[LIMITS.messageBytes()]).encode().array();
            assertThatThrownBy(() -> {
                        for (int i = 0; i < 1_000_000; i++) {
                            socket.getOutputStream().write(message);
                        }
                    })
                    .isInstanceOf(IOException.class);
            assertThat(agent.takeNotifications()).hasSizeBetween(1, 100);
        }
    }

    @Test
    void aPeerThatTakesNothingCostsNothing() throws IOException {
        try (Socket socket = insider()) {
            // Each asks for all of the memory; none is ever received.
            long[] range = {memory.address(), BYTES};
            for (int id = 1; id <= 100; id++) {
                socket.getOutputStream()
                        .write(new Frame.Read(id, 60_000, range).encode().array());
            }
            byte[] pings = new Frame.Ping().encode().array();
            assertThatThrownBy(() -> {
                        for (int i = 0; i < 10_000_000; i++) {
                            socket.getOutputStream().write(pings);
                        }
                    })
                    .as("answers that are not taken end the connection")
                    .isInstanceOf(IOException.class);
        }
    }

    @Test
    void randomFramesNeitherPassNorHang() throws IOException {
        for (int round = 0; round < 300; round++) {
            try (Socket socket = round % 3 == 0 ? socket() : insider()) {
                byte[] bytes = switch (random.nextInt(4)) {
                    case 0 -> noise(random.nextInt(400));
                    case 1 -> mangled(new Frame.Read(1, 1000, new long[] {memory.address() + BYTES, 10}));
                    case 2 -> mangled(new Frame.Write(2, 1000, 3, false, new long[] {1, memory.address() - 5, 10}));
                    default ->
                        concat(
                                frame(random.nextInt(13), random.nextInt(2000), random.nextInt(4)),
                                noise(random.nextInt(2000)));
                };
                socket.getOutputStream().write(bytes);
                socket.shutdownOutput();
                assertThat(isEnded(socket))
                        .as("tests.seed=%d round %d", seed, round)
                        .isTrue();
            } catch (SocketException e) {
                // It was quicker to hang up than we to send.
                assertThat(e).isNotNull();
            }
        }
    }

    @Test
    void framesAreParsedAsWrittenAndTruncatedOnesAreRefused() throws TransferException {
        List<Frame> frames = List.of(
                new Frame.Hello(metadata.secret(), "name", agent.metadata()),
                new Frame.Welcome(),
                new Frame.Refuse("no"),
                new Frame.Notify(new byte[] {1, 2, 3}),
                new Frame.Read(5, 1000, new long[] {1, 2, 3, 4}),
                new Frame.Write(6, 1000, -2, true, new long[] {1, 2, 3}),
                new Frame.Result(7, Optional.empty()),
                new Frame.Result(8, Optional.of(new Frame.Failure(Optional.of(Cause.TIMEOUT), "late"))),
                new Frame.Result(9, Optional.of(new Frame.Failure(Optional.empty(), "not mapped"))),
                new Frame.Cancel(10),
                new Frame.Ping(),
                new Frame.Pong(),
                new Frame.Regions(new Metadata.Update(3, List.of(new Metadata.Exposed(4096, 10, 5, 6)))));
        for (Frame frame : frames) {
            ByteBuffer bytes = frame.encode();
            Frame.Header header = Frame.header(bytes, LIMITS);
            assertThat(header.length()).isEqualTo(bytes.remaining());
            assertThat(Frame.decode(header, bytes)).usingRecursiveComparison().isEqualTo(frame);
        }
        // Some prefixes are frames too, of a shorter text or fewer ranges; none is more than a refusal.
        for (int round = 0; round < 20_000; round++) {
            Frame frame = frames.get(random.nextInt(frames.size()));
            byte[] bytes = mangled(frame);
            try {
                ByteBuffer in = ByteBuffer.wrap(bytes, 0, Math.min(bytes.length, Frame.HEADER_BYTES));
                if (in.remaining() == Frame.HEADER_BYTES) {
                    Frame.Header header = Frame.header(in, LIMITS);
                    if (header.type() != Frame.DATA) {
                        Frame.decode(header, ByteBuffer.wrap(bytes, 16, bytes.length - 16));
                    }
                }
            } catch (TransferException e) {
                assertThat(e.getMessage()).as("tests.seed=%d", seed).isNotEmpty();
            }
        }
    }

    @Test
    void truncatedMetadataIsRefused() throws TransferException {
        byte[] good = agent.metadata();
        assertThat(Metadata.parse(good).name()).isEqualTo(agent.name());
        for (int length = 0; length < good.length; length++) {
            byte[] cut = Arrays.copyOf(good, length);
            assertThatThrownBy(() -> Metadata.parse(cut)).isInstanceOf(TransferException.class);
        }
        byte[] longer = Arrays.copyOf(good, good.length + 1);
        assertThatThrownBy(() -> Metadata.parse(longer)).isInstanceOf(TransferException.class);
        for (int round = 0; round < 20_000; round++) {
            byte[] bytes = good.clone();
            bytes[random.nextInt(bytes.length)] ^= (byte) (1 << random.nextInt(8));
            try {
                assertThat(Metadata.parse(bytes).regions()).hasSizeLessThan(Metadata.MOST_REGIONS);
            } catch (TransferException e) {
                assertThat(e.getMessage()).as("tests.seed=%d", seed).isNotEmpty();
            }
        }
    }

    private static byte[] frame(int type, int length, long id) {
        return ByteBuffer.allocate(Frame.HEADER_BYTES)
                .putInt(type << 24)
                .putInt(length)
                .putLong(id)
                .array();
    }

    private byte[] noise(int length) {
        byte[] bytes = new byte[length];
        random.nextBytes(bytes);
        return bytes;
    }

    /** A frame with bits flipped, cut or with noise after it. */
    private byte[] mangled(Frame frame) {
        byte[] bytes = frame.encode().array();
        return switch (random.nextInt(3)) {
            case 0 -> {
                bytes[random.nextInt(Math.min(bytes.length, 40))] ^= (byte) (1 << random.nextInt(8));
                yield bytes;
            }
            case 1 -> Arrays.copyOf(bytes, random.nextInt(bytes.length));
            default -> concat(bytes, noise(random.nextInt(50)));
        };
    }

    private static byte[] concat(byte[] first, byte[] second) {
        byte[] both = Arrays.copyOf(first, first.length + second.length);
        System.arraycopy(second, 0, both, first.length, second.length);
        return both;
    }
}
