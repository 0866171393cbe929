package baton.store.remote;

import baton.kv.BlockHash;
import io.netty.buffer.ByteBuf;
import java.nio.charset.StandardCharsets;

/** Hashes as text in keys: 64 hexadecimal digits in lower case. */
public final class HexDigits {
    /** Digits of a hash. */
    public static final int OF_HASH = 64;

    private static final byte[] DIGITS = "0123456789abcdef".getBytes(StandardCharsets.US_ASCII);

    private HexDigits() {}

    public static void write(ByteBuf to, BlockHash hash) {
        write(to, hash.a());
        write(to, hash.b());
        write(to, hash.c());
        write(to, hash.d());
    }

    private static void write(ByteBuf to, long value) {
        for (int half = 32; half >= 0; half -= 32) {
            long digits = 0;
            for (int shift = 28; shift >= 0; shift -= 4) {
                digits = digits << 8 | DIGITS[(int) (value >>> half + shift) & 15];
            }
            to.writeLong(digits);
        }
    }
}
