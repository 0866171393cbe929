package baton.cuda.ptx;

import java.util.Locale;

/** Comparisons, of unsigned integers where numbers are integers. */
public enum Is {
    LT,
    LE,
    GT,
    GE,
    EQ,
    NE;

    String text() {
        return name().toLowerCase(Locale.ROOT);
    }
}
