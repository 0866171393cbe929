package baton.store.lm;

import baton.memory.MappableMemory;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Optional;
import java.util.regex.Pattern;

/** The memory of a {@code baton kv-server} of this host, mapped to be read. One thread uses it. */
public final class ServerMemory implements AutoCloseable {
    /** Bytes of the longest description. */
    static final int MOST_BYTES = 256;

    private static final int NUMBERS = 2 * Long.BYTES;
    private static final Pattern FILE = Pattern.compile("/proc/[0-9]{1,10}/fd/[0-9]{1,10}");

    private final Arena arena = Arena.ofShared();
    private final MemorySegment memory;

    /**
     * Maps it.
     *
     * @param description of the server, see {@link #describe}
     * @throws IOException if it is not of this host or this user, or is no description
     */
    ServerMemory(byte[] description) throws IOException {
        try {
            memory = map(description);
        } catch (IOException | RuntimeException | Error e) {
            arena.close();
            throw e;
        }
    }

    private MemorySegment map(byte[] description) throws IOException {
        if (description.length <= NUMBERS) {
            throw new IOException(
                    "a description of %d bytes, must have more than %d".formatted(description.length, NUMBERS));
        }
        ByteBuffer from = ByteBuffer.wrap(description).order(ByteOrder.LITTLE_ENDIAN);
        long inode = from.getLong();
        long bytes = from.getLong();
        String file = StandardCharsets.US_ASCII.decode(from).toString();
        if (!FILE.matcher(file).matches() || bytes <= 0) {
            throw new IOException("bytes=%d file='%s', must be positive and /proc/PID/fd/N".formatted(bytes, file));
        }
        return MappableMemory.mapOnDemand(arena, Path.of(file), inode, bytes);
    }

    MemorySegment memory() {
        return memory;
    }

    /** Whether both ends of a connection are of one host. */
    static boolean isOfThisHost(SocketAddress here, SocketAddress there) {
        return here instanceof InetSocketAddress one
                && there instanceof InetSocketAddress other
                && one.getAddress() != null
                && one.getAddress().equals(other.getAddress());
    }

    /**
     * How processes of this host map a memory: the file's inode and bytes as int64, little-endian, and its path in ASCII.
     *
     * @return empty if the system does not report it
     */
    public static Optional<byte[]> describe(MappableMemory memory) {
        byte[] file = memory.file().toString().getBytes(StandardCharsets.US_ASCII);
        try {
            return Optional.of(ByteBuffer.allocate(NUMBERS + file.length)
                    .order(ByteOrder.LITTLE_ENDIAN)
                    .putLong(MappableMemory.inode(memory.file()))
                    .putLong(memory.memory().byteSize())
                    .put(file)
                    .array());
        } catch (IOException _) {
            return Optional.empty();
        }
    }

    /** Nothing may be copied from it any more. */
    @Override
    public void close() {
        arena.close();
    }
}
