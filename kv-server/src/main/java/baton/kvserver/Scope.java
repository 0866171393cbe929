package baton.kvserver;

import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Optional;

/**
 * The common part of keys that differ in a hash of 64 hexadecimal digits only, {@code <prefix>@<digits>@<suffix>}: so such a key is four
 * numbers to the {@link Cache}, and many of them are looked up fast.
 *
 * @param prefix up to the digits
 * @param suffix behind them
 */
record Scope(String prefix, String suffix) {
    /** Bytes of a hash. */
    static final int HASH_BYTES = 32;

    /** Numbers of a hash. */
    static final int HASH_WORDS = HASH_BYTES / Long.BYTES;

    private static final int DIGITS = 2 * HASH_BYTES;

    /** A key of this form. */
    record Key(Scope scope, long a, long b, long c, long d) {}

    /** A key's parts; empty if it is of another form. */
    static Optional<Key> parse(byte[] key, int bytes) {
        int end = bytes - 1;
        while (end >= 0 && key[end] != '@') {
            end--;
        }
        int start = end - DIGITS;
        if (start < 1 || key[start - 1] != '@') {
            return Optional.empty();
        }
        long[] words = new long[4];
        for (int i = 0; i < DIGITS; i++) {
            int digit = digit(key[start + i]);
            if (digit < 0) {
                return Optional.empty();
            }
            words[i >>> 4] = words[i >>> 4] << 4 | digit;
        }
        Scope scope = of(key, start, end, bytes);
        return Optional.of(new Key(scope, words[0], words[1], words[2], words[3]));
    }

    /** Lower case only: two texts are never the same key. */
    private static int digit(byte character) {
        if (character >= '0' && character <= '9') {
            return character - '0';
        }
        return character >= 'a' && character <= 'f' ? character - 'a' + 10 : -1;
    }

    /** The scope of a key, or of a prefix and a suffix: up to {@code start}, and from {@code end} on. */
    static Scope of(byte[] key, int start, int end, int bytes) {
        return new Scope(
                new String(key, 0, start, StandardCharsets.ISO_8859_1),
                new String(key, end, bytes - end, StandardCharsets.ISO_8859_1));
    }

    /** Whether keys of it are of the form. */
    boolean isValid() {
        return prefix.endsWith("@") && suffix.startsWith("@") && suffix.indexOf('@', 1) < 0;
    }

    byte[] text(long a, long b, long c, long d) {
        HexFormat hex = HexFormat.of();
        return (prefix + hex.toHexDigits(a) + hex.toHexDigits(b) + hex.toHexDigits(c) + hex.toHexDigits(d) + suffix)
                .getBytes(StandardCharsets.ISO_8859_1);
    }
}
