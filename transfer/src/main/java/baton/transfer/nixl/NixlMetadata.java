package baton.transfer.nixl;

import baton.transfer.TransferException;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.zip.CRC32C;

/**
 * An agent's metadata for another, checked before NIXL sees it, because NIXL and UCX do not check it.
 *
 * <p>It is NIXL's own serialization (agent name, addresses of backends, registered memory), so that any NIXL agent can load it,
 * followed by a seal that other agents do not look at: {@code "baton/1\n"}, {@code int64} address of a word of the agent's memory,
 * {@code int64} the content of that word while the agent lives, {@code int64} its revision, {@code int32} CRC32C of everything before.
 * NIXL's serialization is {@code "nixlSerDes|"} and then fields {@code tag, uint64 length, bytes, '|'}, little-endian (src/utils/serdes,
 * nixl_agent.cpp and nixl_descriptors.cpp in NIXL's repository).
 *
 * @param agent its name
 * @param memory registered regions, of the host and of CUDA devices, once for each backend
 * @param identity distinguishes it from another agent at the same place; agents other than Baton's have none
 * @param blob NIXL's part
 */
record NixlMetadata(String agent, List<NixlMemory> memory, Optional<Identity> identity, byte[] blob) {
    private static final byte[] MAGIC = "nixlSerDes|".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] SEAL = "baton/1\n".getBytes(StandardCharsets.US_ASCII);
    private static final int SEAL_BYTES = SEAL.length + 3 * Long.BYTES + Integer.BYTES;
    private static final int DESCRIPTOR_BYTES = 3 * Long.BYTES;

    /** More is no metadata of an agent of this world: a gigabyte of it would be a million registrations. */
    static final int MAX_BYTES = 64 << 20;

    /**
     * A word in an agent's memory, and its content while the agent lives.
     *
     * @param revision of the agent's registrations: the next word. It goes up when the agent unregisters memory
     */
    record Identity(long address, long word, long revision) {}

    /** Puts the seal behind NIXL's part. */
    static byte[] seal(byte[] blob, Identity identity) {
        ByteBuffer sealed = ByteBuffer.allocate(blob.length + SEAL_BYTES).order(ByteOrder.LITTLE_ENDIAN);
        sealed.put(blob)
                .put(SEAL)
                .putLong(identity.address())
                .putLong(identity.word())
                .putLong(identity.revision());
        return sealed.putInt(crc(sealed)).array();
    }

    /** @throws TransferException if these bytes are damaged, or no NIXL agent's metadata */
    static NixlMetadata parse(byte[] bytes) throws TransferException {
        if (bytes.length > MAX_BYTES) {
            throw refused("it has " + bytes.length + " bytes, at most " + MAX_BYTES + " are read");
        }
        try {
            return read(ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN));
        } catch (BufferUnderflowException e) {
            throw refused("it ends early, after " + bytes.length + " bytes");
        }
    }

    private static NixlMetadata read(ByteBuffer in) throws TransferException {
        if (!startsWith(in, MAGIC)) {
            throw refused("it does not begin with nixlSerDes; is the peer's transfer_agent another one?");
        }
        String agent = string(field(in, "Agent"));
        if (agent.isEmpty() || agent.indexOf('\0') >= 0) {
            throw refused("the agent has no proper name");
        }
        long count = number(field(in, "Conns"));
        for (long i = 0; i < count; i++) {
            String backend = string(field(in, "t"));
            if (field(in, "c").length == 0) {
                throw refused("backend " + backend + " has no address");
            }
        }
        if (!string(field(in, "")).equals("MemSection")) {
            throw refused("its section of memory is missing");
        }
        List<NixlMemory> memory = new ArrayList<>();
        long sections = number(field(in, "nixlSecElms"));
        for (long i = 0; i < sections; i++) {
            byte[] _ = field(in, "bknd");
            if (!string(field(in, "nixlDList")).equals("nixlSDList")) {
                throw refused("its list of memory is of an unknown kind");
            }
            byte[] type = field(in, "t");
            if (type.length != Integer.BYTES) {
                throw refused("its kind of memory has " + type.length + " bytes");
            }
            int kind = ByteBuffer.wrap(type).order(ByteOrder.LITTLE_ENDIAN).getInt();
            long descriptors = number(field(in, "n"));
            for (long j = 0; j < descriptors; j++) {
                byte[] descriptor = field(in, "");
                if (descriptor.length < DESCRIPTOR_BYTES) {
                    throw refused("a registration has " + descriptor.length + " bytes");
                }
                ByteBuffer fields = ByteBuffer.wrap(descriptor).order(ByteOrder.LITTLE_ENDIAN);
                long address = fields.getLong();
                long length = fields.getLong();
                NixlMemory registered = new NixlMemory(new NixlMemory.Kind(kind, fields.getLong()), address, length);
                if (registered.address() <= 0 || registered.bytes() <= 0) {
                    throw refused("a registration is " + registered.bytes() + " bytes at " + registered.address());
                }
                if (kind == NixlMemory.Kind.DRAM_TYPE || kind == NixlMemory.Kind.VRAM_TYPE) {
                    memory.add(registered);
                }
            }
        }
        byte[] blob = new byte[in.position()];
        in.get(0, blob);
        return new NixlMetadata(agent, List.copyOf(memory), identity(in), blob);
    }

    private static Optional<Identity> identity(ByteBuffer in) throws TransferException {
        if (!in.hasRemaining()) {
            return Optional.empty();
        }
        if (in.remaining() != SEAL_BYTES || !startsWith(in, SEAL)) {
            throw refused("the bytes after NIXL's part are not a whole seal");
        }
        Identity identity = new Identity(in.getLong(), in.getLong(), in.getLong());
        if (crc(in) != in.getInt()) {
            throw refused("it does not fit its checksum");
        }
        return Optional.of(identity);
    }

    private static byte[] field(ByteBuffer in, String tag) throws TransferException {
        if (!startsWith(in, tag.getBytes(StandardCharsets.US_ASCII))) {
            throw refused("field '" + tag + "' is missing at byte " + in.position());
        }
        long length = in.getLong();
        if (length < 0 || length >= in.remaining()) {
            throw refused("field '" + tag + "' has length " + length + " with " + in.remaining() + " bytes left");
        }
        byte[] value = new byte[(int) length];
        in.get(value);
        if (in.get() != '|') {
            throw refused("field '" + tag + "' does not end where its length says");
        }
        return value;
    }

    private static boolean startsWith(ByteBuffer in, byte[] expected) {
        if (in.remaining() < expected.length
                || !in.slice(in.position(), expected.length).equals(ByteBuffer.wrap(expected))) {
            return false;
        }
        in.position(in.position() + expected.length);
        return true;
    }

    private static long number(byte[] field) throws TransferException {
        if (field.length != Long.BYTES) {
            throw refused("a count has " + field.length + " bytes");
        }
        return ByteBuffer.wrap(field).order(ByteOrder.LITTLE_ENDIAN).getLong();
    }

    private static String string(byte[] field) {
        return new String(field, StandardCharsets.UTF_8);
    }

    /** The CRC32C of everything before the buffer's position. */
    private static int crc(ByteBuffer bytes) {
        CRC32C crc = new CRC32C();
        crc.update(bytes.slice(0, bytes.position()));
        return (int) crc.getValue();
    }

    private static TransferException refused(String why) {
        return new TransferException("this is no metadata of a NIXL agent: " + why);
    }
}
