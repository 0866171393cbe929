package baton.server.grpc;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** Writes a message of Protocol Buffers. Fields are written with their default values, too. */
public final class ProtoWriter {
    private static final int VARINT = 0;
    private static final int FIXED64 = 1;
    private static final int BYTES = 2;
    private static final int FIXED32 = 5;

    private final ByteArrayOutputStream out = new ByteArrayOutputStream();

    /** An integer of any kind, or an enum's number. */
    public ProtoWriter integer(int field, long value) {
        tag(field, VARINT);
        varint(value);
        return this;
    }

    public ProtoWriter bool(int field, boolean value) {
        return integer(field, value ? 1 : 0);
    }

    /** A {@code double}. */
    public ProtoWriter number(int field, double value) {
        tag(field, FIXED64);
        fixed(Double.doubleToRawLongBits(value), Double.BYTES);
        return this;
    }

    /** A {@code float}. */
    public ProtoWriter number32(int field, float value) {
        tag(field, FIXED32);
        fixed(Float.floatToRawIntBits(value), Float.BYTES);
        return this;
    }

    public ProtoWriter string(int field, String value) {
        return bytes(field, value.getBytes(StandardCharsets.UTF_8));
    }

    public ProtoWriter message(int field, ProtoWriter content) {
        return bytes(field, content.toBytes());
    }

    /** A repeated integer, packed. */
    public ProtoWriter integers(int field, int... values) {
        ProtoWriter packed = new ProtoWriter();
        for (int value : values) {
            packed.varint(value);
        }
        return message(field, packed);
    }

    /** A repeated {@code float}, packed. */
    public ProtoWriter floats(int field, List<Float> values) {
        ProtoWriter packed = new ProtoWriter();
        values.forEach(value -> packed.fixed(Float.floatToRawIntBits(value), Float.BYTES));
        return message(field, packed);
    }

    public byte[] toBytes() {
        return out.toByteArray();
    }

    private ProtoWriter bytes(int field, byte[] value) {
        tag(field, BYTES);
        varint(value.length);
        out.writeBytes(value);
        return this;
    }

    private void tag(int field, int type) {
        varint((long) field << 3 | type);
    }

    private void varint(long value) {
        long rest = value;
        while ((rest & ~0x7fL) != 0) {
            out.write((int) (rest & 0x7f | 0x80));
            rest >>>= 7;
        }
        out.write((int) rest);
    }

    private void fixed(long bits, int length) {
        for (int i = 0; i < length; i++) {
            out.write((int) (bits >>> Byte.SIZE * i));
        }
    }
}
