package baton.messages;

import java.io.IOException;
import java.math.BigInteger;
import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;
import org.msgpack.core.MessagePacker;

/** Writes a msgpack message. */
@FunctionalInterface
public interface MsgpackWriter {
    void write(MessageBufferPacker packer) throws IOException;

    /** Packs an unsigned number of 64 bits. */
    static void unsigned(MessagePacker packer, long number) throws IOException {
        if (number >= 0) {
            packer.packLong(number);
        } else {
            packer.packBigInteger(new BigInteger(Long.toUnsignedString(number)));
        }
    }

    /** Packs an array of numbers. */
    static void numbers(MessagePacker packer, int[] numbers) throws IOException {
        packer.packArrayHeader(numbers.length);
        for (int number : numbers) {
            packer.packInt(number);
        }
    }

    /** Packs an array of unsigned numbers of 32 bits. */
    static void unsignedNumbers(MessagePacker packer, int[] numbers) throws IOException {
        packer.packArrayHeader(numbers.length);
        for (int number : numbers) {
            packer.packLong(Integer.toUnsignedLong(number));
        }
    }

    /** The bytes of a message. */
    static byte[] bytes(MsgpackWriter message) {
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            message.write(packer);
            return packer.toByteArray();
        } catch (IOException e) {
            throw new AssertionError("writing to memory failed", e);
        }
    }
}
