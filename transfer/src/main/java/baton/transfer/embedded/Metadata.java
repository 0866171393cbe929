package baton.transfer.embedded;

import baton.kv.DevicePeers;
import baton.transfer.TransferException;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.OptionalLong;

/**
 * The description of an agent, which it returns as its metadata and sends to the agents that it connects to.
 *
 * <p>The bytes, integers in network order and strings in UTF-8 after their length in two bytes: magic {@code "BtnT"}, version (2),
 * name, system, pid (8), host, port (4), length of the secret (2), secret, revision (8), number of regions (4), and for each region
 * address (8), bytes (8), file descriptor, -1 or -2 (4), inode (8), and after -2 the pool of a device in hexadecimal.
 *
 * @param system the same for processes that may be able to map each other's memory: boot id, namespace of pids and user
 * @param host at which it listens
 * @param secret that a connecting agent has to send
 * @param revision grows with each change of the regions
 */
record Metadata(
        String name,
        String system,
        long pid,
        String host,
        int port,
        byte[] secret,
        long revision,
        List<Exposed> regions) {
    static final int SECRET_BYTES = 32;
    static final int MOST_REGIONS = 4096;
    /** Bytes of the longest metadata. */
    static final int MOST_BYTES = 256 << 10;

    private static final int MAGIC = 0x42746e54;
    private static final short VERSION = 2;
    private static final int LONGEST_STRING = 512;
    private static final int NO_FILE = -1;
    private static final int OF_DEVICE = -2;

    /**
     * A region of the agent's process.
     *
     * @param fd of the file that it is a mapping of, in that process; negative if there is none
     * @param device {@link DevicePeers#exported} in hexadecimal; empty if it is the host's memory
     */
    record Exposed(long address, long bytes, int fd, long inode, String device) {
        Exposed(long address, long bytes, int fd, long inode) {
            this(address, bytes, fd, inode, "");
        }

        static Exposed withoutFile(long address, long bytes) {
            return new Exposed(address, bytes, NO_FILE, 0);
        }

        static Exposed ofDevice(long address, long bytes, DevicePeers peers) {
            return new Exposed(address, bytes, OF_DEVICE, 0, HexFormat.of().formatHex(peers.exported()));
        }

        boolean isOfDevice() {
            return fd == OF_DEVICE;
        }

        /** Offset of some memory in it, if it is there. */
        OptionalLong offset(MemorySegment part) {
            return holds(part.address(), part.byteSize())
                    ? OptionalLong.of(part.address() - address)
                    : OptionalLong.empty();
        }

        boolean holds(long at, long length) {
            return length > 0 && at >= address && at - address <= bytes - length;
        }

        /** Whether processes of the same system can open it. */
        boolean mappable() {
            return fd >= 0 || isOfDevice();
        }
    }

    Metadata {
        regions = List.copyOf(regions);
    }

    /** Where a process of the same system opens the region's file. */
    Path fileOf(Exposed region) {
        return Path.of("/proc/" + pid + "/fd/" + region.fd());
    }

    /** The system that this process runs on; one that is not Linux is like no other. */
    static String thisSystem() {
        try {
            return "%s %s %s"
                    .formatted(
                            Files.readString(Path.of("/proc/sys/kernel/random/boot_id"))
                                    .strip(),
                            Files.readSymbolicLink(Path.of("/proc/self/ns/pid")),
                            Files.getAttribute(Path.of("/proc/self"), "unix:uid"));
        } catch (IOException | UnsupportedOperationException | IllegalArgumentException _) {
            return HexFormat.of().toHexDigits(ProcessHandle.current().pid());
        }
    }

    byte[] bytes() {
        ByteBuffer out = ByteBuffer.allocate(MOST_BYTES);
        out.putInt(MAGIC).putShort(VERSION);
        put(out, name);
        put(out, system);
        out.putLong(pid);
        put(out, host);
        out.putInt(port);
        out.putShort((short) secret.length).put(secret);
        putRegions(out, revision, regions);
        byte[] bytes = new byte[out.flip().remaining()];
        out.get(bytes);
        return bytes;
    }

    static void putRegions(ByteBuffer out, long revision, List<Exposed> regions) {
        out.putLong(revision).putInt(regions.size());
        for (Exposed region : regions) {
            out.putLong(region.address).putLong(region.bytes).putInt(region.fd).putLong(region.inode);
            if (region.isOfDevice()) {
                put(out, region.device);
            }
        }
    }

    static Metadata parse(byte[] bytes) throws TransferException {
        try {
            ByteBuffer in = ByteBuffer.wrap(bytes);
            if (in.getInt() != MAGIC) {
                throw new TransferException("metadata is not of an embedded transfer agent");
            }
            short version = in.getShort();
            if (version != VERSION) {
                throw new TransferException(
                        "metadata has version=%d, this agent knows version=%d".formatted(version, VERSION));
            }
            String name = string(in, "name");
            String system = string(in, "system");
            long pid = in.getLong();
            String host = string(in, "host");
            int port = in.getInt();
            if (port < 1 || port > 0xffff) {
                throw new TransferException("metadata has port=" + port + ", must be from 1 to 65535");
            }
            int secretBytes = in.getShort();
            if (secretBytes != SECRET_BYTES) {
                throw new TransferException(
                        "metadata has a secret of %d bytes, must be %d".formatted(secretBytes, SECRET_BYTES));
            }
            byte[] secret = new byte[secretBytes];
            in.get(secret);
            Update update = parseRegions(in);
            return new Metadata(name, system, pid, host, port, secret, update.revision(), update.regions());
        } catch (BufferUnderflowException e) {
            throw new TransferException("metadata of %d bytes is truncated".formatted(bytes.length), e);
        }
    }

    /** The regions that an agent has now. */
    record Update(long revision, List<Exposed> regions) {}

    /** @throws BufferUnderflowException if it is truncated */
    static Update parseRegions(ByteBuffer in) throws TransferException {
        long revision = in.getLong();
        int count = in.getInt();
        if (count < 0 || count > MOST_REGIONS) {
            throw new TransferException(
                    "metadata has %d regions, at most %d are allowed".formatted(count, MOST_REGIONS));
        }
        List<Exposed> regions = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Exposed region = new Exposed(in.getLong(), in.getLong(), in.getInt(), in.getLong());
            if (region.isOfDevice()) {
                region = new Exposed(region.address, region.bytes, region.fd, region.inode, string(in, "device"));
            }
            if (region.bytes <= 0 || region.address <= 0 || region.address + region.bytes < 0) {
                throw new TransferException(
                        "metadata has a region at address=%d of bytes=%d".formatted(region.address, region.bytes));
            }
            regions.add(region);
        }
        if (in.hasRemaining()) {
            throw new TransferException("metadata has %d bytes too many".formatted(in.remaining()));
        }
        return new Update(revision, regions);
    }

    private static void put(ByteBuffer out, String text) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        out.putShort((short) bytes.length).put(bytes);
    }

    private static String string(ByteBuffer in, String field) throws TransferException {
        int length = in.getShort();
        if (length <= 0 || length > LONGEST_STRING) {
            throw new TransferException(
                    "metadata has a %s of %d bytes, from 1 to %d are allowed".formatted(field, length, LONGEST_STRING));
        }
        byte[] bytes = new byte[length];
        in.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
