package baton.messages;

import baton.kv.InvalidFieldException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.msgpack.core.MessageFormat;
import org.msgpack.core.MessagePack;
import org.msgpack.core.MessagePackException;
import org.msgpack.core.MessageUnpacker;
import org.msgpack.value.ValueType;

/**
 * Reads a msgpack message of a peer, value by value. A value of another type or range is an {@link InvalidFieldException} that names the
 * field. Allocates memory as bytes are read, never for announced sizes.
 */
public final class MsgpackReader implements AutoCloseable {
    private static final int MOST_FIELDS = 256;
    private static final int DEEPEST = 16;

    private final MessageUnpacker unpacker;
    private final int length;

    private MsgpackReader(byte[] message) {
        this.unpacker = MessagePack.newDefaultUnpacker(message);
        this.length = message.length;
    }

    /** Reads the value of one field of a message. */
    @FunctionalInterface
    public interface FieldReader {
        /** Reads the value, or leaves it unread and returns false, so that it is skipped. */
        boolean read(String name, MsgpackReader value);
    }

    @FunctionalInterface
    private interface Unpacking<T> {
        T unpack() throws IOException;
    }

    /**
     * Reads a message that is a map with texts as keys, as msgspec writes dataclasses.
     *
     * @param what the message's name, for errors
     * @throws InvalidFieldException if the bytes are no such message
     */
    public static void readFields(String what, byte[] message, FieldReader fields) {
        try (MsgpackReader reader = new MsgpackReader(message)) {
            reader.fields(what, fields);
            reader.end(what);
        }
    }

    /** A reader of one message; to be closed by {@link #end} and {@link #close}. */
    public static MsgpackReader of(byte[] message) {
        return new MsgpackReader(message);
    }

    public void fields(String what, FieldReader fields) {
        int count = unpack(what, "a map", unpacker::unpackMapHeader);
        if (count > MOST_FIELDS) {
            throw new InvalidFieldException(what, "has " + count + " fields, must have at most " + MOST_FIELDS);
        }
        Set<String> seen = new HashSet<>();
        for (int i = 0; i < count; i++) {
            String name = text(what + ": a field's name");
            if (!seen.add(name)) {
                throw new InvalidFieldException(what + "." + name, "is given twice");
            }
            if (!fields.read(name, this)) {
                skip(what + "." + name, 0);
            }
        }
    }

    /** The number of elements that follow. */
    public int array(String field) {
        int count = unpack(field, "an array", unpacker::unpackArrayHeader);
        // Each has a byte at least.
        if (count > remaining()) {
            throw new InvalidFieldException(field, "announces " + count + " elements in " + remaining() + " bytes");
        }
        return count;
    }

    public String text(String field) {
        byte[] bytes = payload(field, unpack(field, "a text", unpacker::unpackRawStringHeader));
        try {
            return StandardCharsets.UTF_8
                    .newDecoder()
                    .decode(ByteBuffer.wrap(bytes))
                    .toString();
        } catch (CharacterCodingException e) {
            throw new InvalidFieldException(field, "is not UTF-8", e);
        }
    }

    public byte[] bytes(String field) {
        return payload(field, unpack(field, "bytes", unpacker::unpackBinaryHeader));
    }

    public int integer(String field, int min, int max) {
        long value = unpack(field, "a whole number", unpacker::unpackLong);
        if (value < min || value > max) {
            throw new InvalidFieldException(field, "is " + value + ", must be " + min + " to " + max);
        }
        return (int) value;
    }

    /** An unsigned number of 64 bits. */
    public long unsigned(String field) {
        // Only numbers of 2^63 and more have this format.
        if (unpack(field, "a whole number", unpacker::getNextFormat) == MessageFormat.UINT64) {
            return unpack(field, "a whole number", unpacker::unpackBigInteger).longValue();
        }
        long value = unpack(field, "a whole number", unpacker::unpackLong);
        if (value < 0) {
            throw new InvalidFieldException(field, "is " + value + ", must be at least 0");
        }
        return value;
    }

    /** The type of the value that is next. */
    public ValueType type(String field) {
        return unpack(field, "a value", unpacker::getNextFormat).getValueType();
    }

    /** Passes over a value of any type. */
    public void skip(String field) {
        skip(field, 0);
    }

    public long[] unsignedNumbers(String field) {
        long[] numbers = new long[array(field)];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = unsigned(field);
        }
        return numbers;
    }

    public int[] integers(String field, int min, int max) {
        int[] numbers = new int[array(field)];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = integer(field, min, max);
        }
        return numbers;
    }

    public List<String> texts(String field) {
        List<String> texts = new ArrayList<>();
        for (int left = array(field); left > 0; left--) {
            texts.add(text(field));
        }
        return List.copyOf(texts);
    }

    public double number(String field) {
        return unpack(
                field,
                "a number",
                () -> unpacker.getNextFormat().getValueType().isIntegerType()
                        ? unpacker.unpackBigInteger().doubleValue()
                        : unpacker.unpackDouble());
    }

    /** Takes a nil if there is one. */
    public boolean nil(String field) {
        return unpack(field, "a value", unpacker::tryUnpackNil);
    }

    /** @throws InvalidFieldException if bytes are left */
    public void end(String what) {
        if (remaining() > 0) {
            throw new InvalidFieldException(what, "is followed by " + remaining() + " bytes");
        }
    }

    @Override
    public void close() {
        try {
            unpacker.close();
        } catch (IOException e) {
            throw new AssertionError("an array can be closed", e);
        }
    }

    private void skip(String field, int depth) {
        if (depth > DEEPEST) {
            throw new InvalidFieldException(field, "is nested more than " + DEEPEST + " deep");
        }
        switch (unpack(field, "a value", () -> unpacker.getNextFormat().getValueType())) {
            case ARRAY -> {
                for (int left = array(field); left > 0; left--) {
                    skip(field, depth + 1);
                }
            }
            case MAP -> {
                for (long left = 2L * unpack(field, "a map", unpacker::unpackMapHeader); left > 0; left--) {
                    skip(field, depth + 1);
                }
            }
            case NIL, BOOLEAN, INTEGER, FLOAT, STRING, BINARY, EXTENSION ->
                unpack(field, "a value", () -> {
                    unpacker.skipValue();
                    return field;
                });
        }
    }

    private byte[] payload(String field, int bytes) {
        if (bytes > remaining()) {
            throw new InvalidFieldException(field, "announces " + bytes + " bytes, " + remaining() + " are there");
        }
        return unpack(field, "bytes", () -> unpacker.readPayload(bytes));
    }

    private long remaining() {
        return length - unpacker.getTotalReadBytes();
    }

    private static <T> T unpack(String field, String wanted, Unpacking<T> unpacking) {
        try {
            return unpacking.unpack();
        } catch (IOException | MessagePackException e) {
            throw new InvalidFieldException(field, "is not " + wanted + " (" + e.getMessage() + ")", e);
        }
    }
}
