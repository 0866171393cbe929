package baton.cli.doctor;

import java.util.Locale;
import java.util.Optional;

/**
 * One examined property.
 *
 * @param name of it, in few words
 * @param found the property's value, one line
 * @param level its meaning for Baton
 * @param advice one line with the command or setting that changes it; empty if nothing is to be changed
 */
public record Finding(String name, String found, Level level, Optional<String> advice) {
    /** The severity of a finding. */
    public enum Level {
        /** Nothing to change. */
        OK,
        /** Baton runs; the advice makes it faster, or makes more of it usable. */
        ADVICE,
        /** Baton cannot run until the advice is followed. */
        BROKEN
    }

    /** Bytes in the largest unit of which there is one. */
    static String size(double bytes) {
        for (int unit = 3; unit > 0; unit--) {
            double units = bytes / (1L << 10 * unit);
            if (units >= 1) {
                return String.format(Locale.ROOT, "%.1f %ciB", units, "KMG".charAt(unit - 1));
            }
        }
        return String.format(Locale.ROOT, "%.0f bytes", bytes);
    }

    static Finding ok(String name, String found) {
        return new Finding(name, found, Level.OK, Optional.empty());
    }

    static Finding advice(String name, String found, String advice) {
        return new Finding(name, found, Level.ADVICE, Optional.of(advice));
    }

    static Finding broken(String name, String found, String advice) {
        return new Finding(name, found, Level.BROKEN, Optional.of(advice));
    }
}
