package baton.store.redis;

import baton.kv.BlockHash;
import baton.store.remote.HexDigits;
import baton.store.remote.ValueHeader;
import io.netty.buffer.ByteBuf;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** Writes commands in the Redis protocol (RESP): arrays of bulk strings. Keys are {@code <prefix>:<format>:<block hash>}. */
final class Keys {
    /** A key as a bulk string, up to its hash. */
    private final byte[] start;

    private final int bytes;

    /** @param format names the format, {@link ValueHeader#formatName} */
    Keys(String prefix, String format) {
        String text = prefix + ":" + format + ":";
        bytes = text.length() + HexDigits.OF_HASH;
        start = ("$" + bytes + "\r\n" + text).getBytes(StandardCharsets.US_ASCII);
    }

    /** Bytes of a key as an argument, about. */
    int bytes() {
        return start.length + HexDigits.OF_HASH + 2;
    }

    void write(ByteBuf to, BlockHash key) {
        to.writeBytes(start);
        HexDigits.write(to, key);
        lineEnd(to);
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
