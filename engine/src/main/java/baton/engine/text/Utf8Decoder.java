package baton.engine.text;

/**
 * UTF-8 decoding over pieces cut anywhere. Ill-formed input is replaced by U+FFFD per maximal subpart (Unicode 15, 3.9,
 * table 3-8), as Rust's {@code from_utf8_lossy} does and {@link String}'s own decoder does not for surrogates.
 */
final class Utf8Decoder {
    private static final char REPLACEMENT = '\uFFFD';

    private int codePoint;
    private int missing;
    private int lower;
    private int upper;

    /** Appends the characters that are complete after {@code bytes}. */
    void decode(byte[] bytes, StringBuilder text) {
        for (byte signed : bytes) {
            int value = signed & 0xFF;
            if (missing > 0) {
                if (value >= lower && value <= upper) {
                    codePoint = (codePoint << 6) | (value & 0x3F);
                    lower = 0x80;
                    upper = 0xBF;
                    if (--missing == 0) {
                        text.appendCodePoint(codePoint);
                    }
                    continue;
                }
                missing = 0;
                text.append(REPLACEMENT);
            }
            start(value, text);
        }
    }

    /** Appends U+FFFD if a character is incomplete. */
    void finish(StringBuilder text) {
        if (missing > 0) {
            missing = 0;
            text.append(REPLACEMENT);
        }
    }

    private void start(int value, StringBuilder text) {
        lower = 0x80;
        upper = 0xBF;
        if (value < 0x80) {
            text.append((char) value);
        } else if (value >= 0xC2 && value <= 0xDF) {
            missing = 1;
            codePoint = value & 0x1F;
        } else if (value >= 0xE0 && value <= 0xEF) {
            missing = 2;
            codePoint = value & 0x0F;
            lower = value == 0xE0 ? 0xA0 : 0x80;
            upper = value == 0xED ? 0x9F : 0xBF;
        } else if (value >= 0xF0 && value <= 0xF4) {
            missing = 3;
            codePoint = value & 0x07;
            lower = value == 0xF0 ? 0x90 : 0x80;
            upper = value == 0xF4 ? 0x8F : 0xBF;
        } else {
            text.append(REPLACEMENT);
        }
    }
}
