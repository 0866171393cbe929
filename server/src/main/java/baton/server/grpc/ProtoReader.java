package baton.server.grpc;

import baton.kv.ConfigException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.function.LongConsumer;

/**
 * Reads the fields of one message of Protocol Buffers in the order in which they were sent. After {@link #next}, one of the methods for
 * values reads the field, or {@link #skip} does. Methods throw {@link ConfigException}, which names the message, if its bytes are
 * malformed or the field has another type.
 */
public final class ProtoReader {
    /** The limit of nested messages, as in Google's implementations. */
    private static final int MOST_NESTED = 100;

    private static final int VARINT = 0;
    private static final int FIXED64 = 1;
    private static final int BYTES = 2;
    private static final int FIXED32 = 5;

    private final String path;
    private final ByteBuffer in;
    private final int depth;
    private int field;
    private int type;

    private ProtoReader(String path, ByteBuffer in, int depth) {
        this.path = path;
        this.in = in.order(ByteOrder.LITTLE_ENDIAN);
        this.depth = depth;
    }

    /** @param name of the message, in errors */
    public static ProtoReader of(String name, byte[] message) {
        return new ProtoReader(name, ByteBuffer.wrap(message), 0);
    }

    /** Goes to the next field; false at the message's end. */
    public boolean next() {
        if (!in.hasRemaining()) {
            return false;
        }
        long tag = varint();
        field = (int) (tag >>> 3);
        type = (int) (tag & 7);
        if (field <= 0 || tag >>> 32 != 0) {
            throw malformed("has a field of the number " + (tag >>> 3));
        }
        return true;
    }

    /** The number of the current field. */
    public int field() {
        return field;
    }

    /** An {@code int32}, {@code int64} or enum. */
    public long integer() {
        require(VARINT);
        return varint();
    }

    /** A {@code uint32}. */
    public long unsigned() {
        return integer() & 0xffff_ffffL;
    }

    public boolean bool() {
        return integer() != 0;
    }

    /** A {@code float}, as the shortest decimal that is this {@code float}: as JSON has it. */
    public double number() {
        require(FIXED32);
        return Double.parseDouble(Float.toString(bytes(Float.BYTES).getFloat()));
    }

    /** A {@code double}. */
    public double doubleNumber() {
        require(FIXED64);
        return bytes(Double.BYTES).getDouble();
    }

    public String string() {
        require(BYTES);
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(sized()).toString();
        } catch (CharacterCodingException _) {
            throw malformed("has a field, " + field + ", that is not UTF-8");
        }
    }

    /** @param name of the message, in errors */
    public ProtoReader message(String name) {
        require(BYTES);
        if (depth == MOST_NESTED) {
            throw malformed("has messages within each other more than " + MOST_NESTED + " deep");
        }
        return new ProtoReader(name, sized(), depth + 1);
    }

    /** Each of a repeated {@code uint32}, packed or not. */
    public void eachUnsigned(LongConsumer action) {
        if (type == VARINT) {
            action.accept(unsigned());
            return;
        }
        require(BYTES);
        ProtoReader packed = new ProtoReader(path, sized(), depth);
        while (packed.in.hasRemaining()) {
            action.accept(packed.varint() & 0xffff_ffffL);
        }
    }

    /** Leaves the field out. */
    public void skip() {
        switch (type) {
            case VARINT -> varint();
            case FIXED64 -> bytes(Double.BYTES);
            case BYTES -> sized();
            case FIXED32 -> bytes(Float.BYTES);
            default -> throw malformed("has a field, " + field + ", of the unknown wire type " + type);
        }
    }

    private void require(int wanted) {
        if (type != wanted) {
            throw malformed("has a field, " + field + ", of the wire type " + type + ", which must be " + wanted);
        }
    }

    private long varint() {
        long value = 0;
        for (int shift = 0; shift < Long.SIZE; shift += 7) {
            byte next = bytes(1).get();
            value |= (next & 0x7fL) << shift;
            if (next >= 0) {
                return value;
            }
        }
        throw malformed("has a number of more than 64 bits");
    }

    private ByteBuffer sized() {
        long length = varint();
        if (length < 0 || length > in.remaining()) {
            throw endsEarly();
        }
        return bytes((int) length);
    }

    private ByteBuffer bytes(int length) {
        if (length > in.remaining()) {
            throw endsEarly();
        }
        ByteBuffer bytes = in.slice(in.position(), length).order(ByteOrder.LITTLE_ENDIAN);
        in.position(in.position() + length);
        return bytes;
    }

    private ConfigException endsEarly() {
        return malformed("ends within field " + field);
    }

    private ConfigException malformed(String problem) {
        return new ConfigException(path, "is malformed: it " + problem);
    }
}
