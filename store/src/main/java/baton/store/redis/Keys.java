package baton.store.redis;

import baton.kv.BlockHash;
import baton.store.remote.ValueHeader;
import io.netty.buffer.ByteBuf;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** Writes commands in the Redis protocol (RESP): arrays of bulk strings. Keys are {@code <prefix>:<format>:<block hash>}. */
final class Keys {
    private static final byte[] DIGITS = "0123456789abcdef".getBytes(StandardCharsets.US_ASCII);
    private static final int HASH_DIGITS = 64;

    /** A key as a bulk string, up to its hash. */
    private final byte[] start;

    private final int bytes;

    /** @param format names the format, {@link ValueHeader#formatName} */
    Keys(String prefix, String format) {
        String text = prefix + ":" + format + ":";
        bytes = text.length() + HASH_DIGITS;
        start = ("$" + bytes + "\r\n" + text).getBytes(StandardCharsets.US_ASCII);
    }

    /** Bytes of a key as an argument, about. */
    int bytes() {
        return start.length + HASH_DIGITS + 2;
    }

    void write(ByteBuf to, BlockHash key) {
        to.writeBytes(start);
        hex(to, key.a());
        hex(to, key.b());
        hex(to, key.c());
        hex(to, key.d());
        lineEnd(to);
    }

    private static void hex(ByteBuf to, long value) {
        for (int half = 32; half >= 0; half -= 32) {
            long digits = 0;
            for (int shift = 28; shift >= 0; shift -= 4) {
                digits = digits << 8 | DIGITS[(int) (value >>> half + shift) & 15];
            }
            to.writeLong(digits);
        }
    }

    /** The beginning of a command: its number of arguments, itself included, and its name. */
    static void command(ByteBuf to, int arguments, String name) {
        to.writeByte('*');
        number(to, arguments);
        argument(to, name);
    }

    static void argument(ByteBuf to, String text) {
        to.writeByte('$');
        number(to, text.length());
        to.writeCharSequence(text, StandardCharsets.US_ASCII);
        lineEnd(to);
    }

    /** A whole command. */
    static void command(ByteBuf to, List<String> words) {
        to.writeByte('*');
        number(to, words.size());
        words.forEach(word -> argument(to, word.getBytes(StandardCharsets.UTF_8)));
    }

    static void argument(ByteBuf to, byte[] bytes) {
        to.writeByte('$');
        number(to, bytes.length);
        to.writeBytes(bytes);
        lineEnd(to);
    }

    /** A number on a line of its own. */
    static void number(ByteBuf to, long number) {
        to.writeCharSequence(Long.toString(number), StandardCharsets.US_ASCII);
        lineEnd(to);
    }

    static void lineEnd(ByteBuf to) {
        to.writeShort('\r' << 8 | '\n');
    }
}
