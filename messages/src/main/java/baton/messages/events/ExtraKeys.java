package baton.messages.events;

import baton.kv.InvalidFieldException;
import baton.messages.MsgpackReader;
import java.util.List;

/**
 * A digest of the inputs of a block's hash beside its tokens: vLLM's {@code extra_keys}, such as the name of a LoRA adapter or a cache
 * salt. Equal keys in the same order have equal digests; 0 is that of no keys.
 */
public final class ExtraKeys {
    private static final long MULTIPLIER = 0x9E3779B97F4A7C15L;
    private static final int DEEPEST = 4;

    private ExtraKeys() {}

    public static long of(List<String> keys) {
        long digest = 0;
        for (String key : keys) {
            digest = with(digest, of(key));
        }
        return digest;
    }

    /** Reads a block's array of keys, or nil. */
    static long read(String field, MsgpackReader value) {
        if (value.nil(field)) {
            return 0;
        }
        long digest = 0;
        for (int left = value.array(field); left > 0; left--) {
            digest = with(digest, key(field, value, 0));
        }
        return digest;
    }

    /** A key is a text, or for media an array of texts and numbers. */
    private static long key(String field, MsgpackReader value, int depth) {
        if (depth > DEEPEST) {
            throw new InvalidFieldException(field, "is nested more than " + DEEPEST + " deep");
        }
        return switch (value.type(field)) {
            case STRING -> of(value.text(field));
            case BINARY -> {
                long digest = 3;
                for (byte each : value.bytes(field)) {
                    digest = with(digest, each);
                }
                yield digest;
            }
            case INTEGER -> with(4, Double.doubleToLongBits(value.number(field)));
            case ARRAY -> {
                long digest = 5;
                for (int left = value.array(field); left > 0; left--) {
                    digest = with(digest, key(field, value, depth + 1));
                }
                yield digest;
            }
            case NIL, BOOLEAN, FLOAT, MAP, EXTENSION -> {
                value.skip(field);
                yield 6;
            }
        };
    }

    private static long of(String text) {
        long digest = 2;
        for (int i = 0; i < text.length(); i++) {
            digest = with(digest, text.charAt(i));
        }
        return digest;
    }

    private static long with(long digest, long next) {
        long mixed = (digest * 31 + next + 1) * MULTIPLIER;
        mixed ^= mixed >>> 29;
        return mixed == 0 ? 1 : mixed;
    }
}
