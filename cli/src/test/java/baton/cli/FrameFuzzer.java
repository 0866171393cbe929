package baton.cli;

import baton.testkit.DamagingProxy.Conversation;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

/** Replays, with mutations, the bytes that clients have sent to ports of this host, over connections of its own. */
final class FrameFuzzer {
    private static final int AT_ONCE = 16;
    private static final int CONNECT_MILLIS = 2000;
    /** How long a reply is awaited before the connection is closed. */
    private static final int REPLY_MILLIS = 30;

    private static final int LONGEST_SPAN = 2048;
    private static final long[] EXTREMES = {
        0,
        1,
        -1,
        127,
        128,
        255,
        256,
        0x7fff,
        0x8000,
        0xffff,
        1 << 20,
        Integer.MAX_VALUE,
        Integer.MIN_VALUE,
        1L << 32,
        1L << 40,
        Long.MAX_VALUE,
        Long.MIN_VALUE
    };
    private static final String[] NUMBERS = {
        "0",
        "-1",
        "00",
        "4294967296",
        "9223372036854775807",
        "9223372036854775808",
        "99999999999999999999999",
        "1e999",
        ""
    };

    private final List<Conversation> corpus;
    private final long seed;
    private final AtomicLong sent = new AtomicLong();
    private final AtomicLong refused = new AtomicLong();

    FrameFuzzer(List<Conversation> corpus, long seed) {
        this.corpus = corpus;
        this.seed = seed;
    }

    /** Frames that were written, of conversations with a mutation. */
    long sent() {
        return sent.get();
    }

    /** Connections that a port did not take. */
    long refused() {
        return refused.get();
    }

    /** Sends at least so many frames. */
    void run(long frames) throws InterruptedException {
        long end = sent.get() + frames;
        try (ExecutorService executor = Executors.newVirtualThreadPerTaskExecutor()) {
            for (int i = 0; i < AT_ONCE; i++) {
                Random random = new Random(seed + 31L * i + sent.get());
                executor.execute(() -> {
                    while (sent.get() < end && refused.get() < end) {
                        Conversation said = corpus.get(random.nextInt(corpus.size()));
                        say(said.port(), mutated(said.pieces(), random), random);
                    }
                });
            }
        }
    }

    private void say(int port, List<byte[]> pieces, Random random) {
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), CONNECT_MILLIS);
            socket.setTcpNoDelay(true);
            socket.setSoTimeout(REPLY_MILLIS);
            OutputStream out = socket.getOutputStream();
            for (byte[] piece : pieces) {
                out.write(piece);
                sent.incrementAndGet();
            }
            switch (random.nextInt(4)) {
                case 0 -> socket.setOption(StandardSocketOptions.SO_LINGER, 0);
                case 1, 2 -> {
                    socket.shutdownOutput();
                    awaitEnd(socket);
                }
                default -> awaitEnd(socket);
            }
        } catch (java.net.ConnectException e) {
            refused.incrementAndGet();
        } catch (IOException e) {
            // The server has closed the connection, or sends nothing.
        }
    }

    private static void awaitEnd(Socket socket) throws IOException {
        byte[] buffer = new byte[8192];
        while (socket.getInputStream().read(buffer) >= 0) {
            // Replies do not matter.
        }
    }

    private List<byte[]> mutated(List<byte[]> pieces, Random random) {
        List<byte[]> mutated = new ArrayList<>(pieces);
        for (int i = 1 + random.nextInt(3); i > 0; i--) {
            int at = random.nextInt(mutated.size());
            switch (random.nextInt(12)) {
                case 0 -> mutated.add(at, mutated.get(at));
                case 1 -> mutated.add(random.nextInt(mutated.size() + 1), mutated.get(at));
                case 2 -> {
                    List<byte[]> others =
                            corpus.get(random.nextInt(corpus.size())).pieces();
                    mutated.add(at, others.get(random.nextInt(others.size())));
                }
                case 3 -> {
                    mutated.remove(at);
                    if (mutated.isEmpty()) {
                        mutated.add(new byte[] {(byte) random.nextInt()});
                    }
                }
                default -> mutated.set(at, mutated(mutated.get(at), random));
            }
        }
        return mutated;
    }

    private static byte[] mutated(byte[] piece, Random random) {
        byte[] bytes = piece.clone();
        if (bytes.length == 0) {
            return bytes;
        }
        // Heads are hit as often as long bodies.
        int reach = random.nextBoolean() ? bytes.length : Math.min(bytes.length, 64);
        int at = random.nextInt(reach);
        int span = 1 + random.nextInt(random.nextBoolean() ? 8 : LONGEST_SPAN);
        int until = Math.min(bytes.length, at + span);
        return switch (random.nextInt(9)) {
            case 0 -> {
                bytes[at] ^= (byte) (1 << random.nextInt(Byte.SIZE));
                yield bytes;
            }
            case 1 -> {
                bytes[at] = (byte) random.nextInt();
                yield bytes;
            }
            case 2, 3 -> {
                extreme(bytes, at, random);
                yield bytes;
            }
            case 4 -> joined(Arrays.copyOf(bytes, at), Arrays.copyOfRange(bytes, until, bytes.length));
            case 5 -> Arrays.copyOf(bytes, at);
            case 6 -> {
                byte[] noise = new byte[span];
                random.nextBytes(noise);
                yield joined(joined(Arrays.copyOf(bytes, at), noise), Arrays.copyOfRange(bytes, at, bytes.length));
            }
            case 7 -> joined(Arrays.copyOf(bytes, until), Arrays.copyOfRange(bytes, at, bytes.length));
            default -> withAnotherNumber(bytes, at, random);
        };
    }

    private static void extreme(byte[] bytes, int at, Random random) {
        long value = EXTREMES[random.nextInt(EXTREMES.length)] + random.nextInt(3) - 1;
        ByteBuffer buffer = ByteBuffer.allocate(Long.BYTES)
                .order(random.nextBoolean() ? ByteOrder.BIG_ENDIAN : ByteOrder.LITTLE_ENDIAN);
        int width = 1 << random.nextInt(4);
        switch (width) {
            case 1 -> buffer.put((byte) value);
            case 2 -> buffer.putShort((short) value);
            case 4 -> buffer.putInt((int) value);
            default -> buffer.putLong(value);
        }
        System.arraycopy(buffer.array(), 0, bytes, at, Math.min(width, bytes.length - at));
    }

    /** Replaces the next number in decimal digits. */
    private static byte[] withAnotherNumber(byte[] bytes, int at, Random random) {
        int first = at;
        while (first < bytes.length && !Character.isDigit(bytes[first])) {
            first++;
        }
        int last = first;
        while (last < bytes.length && Character.isDigit(bytes[last])) {
            last++;
        }
        byte[] number = NUMBERS[random.nextInt(NUMBERS.length)].getBytes(StandardCharsets.US_ASCII);
        return joined(joined(Arrays.copyOf(bytes, first), number), Arrays.copyOfRange(bytes, last, bytes.length));
    }

    private static byte[] joined(byte[] first, byte[] second) {
        byte[] both = Arrays.copyOf(first, first.length + second.length);
        System.arraycopy(second, 0, both, first.length, second.length);
        return both;
    }
}
