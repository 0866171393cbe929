package baton.testkit;

import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;

/**
 * Damages to bytes that pass {@link DamagingProxy proxies}. One at a time is armed and happens once. A lane is one direction of a proxy's
 * connections. Any thread.
 */
public final class Damages {
    private static final int LONGEST_SPAN = 4096;
    private static final List<Kind> KINDS = List.copyOf(EnumSet.allOf(Kind.class));

    @GuardedBy("this")
    private final Map<Kind, Integer> done = new EnumMap<>(Kind.class);

    @GuardedBy("this")
    private Optional<Damage> armed = Optional.empty();
    /** Bytes that pass the lane before the armed damage. */
    @GuardedBy("this")
    private long before;

    @GuardedBy("this")
    private int count;

    /** Kinds of damage. */
    public enum Kind {
        /** One bit is another. */
        FLIP,
        /** Bytes are missing, and the connection ends. */
        CUT,
        /** Bytes are missing, and the connection goes on. */
        DROP,
        /** Two neighbouring spans are exchanged. */
        SWAP,
        /** A span comes twice. */
        REPEAT
    }

    /**
     * A damage.
     *
     * @param after bytes that pass the lane undamaged from {@link #arm} on
     * @param span bytes that are dropped, exchanged or repeated, at most
     */
    public record Damage(Kind kind, String lane, long after, int span) {
        /**
         * A random one. Small and large offsets are as probable, so that heads of messages are hit as often as large tensors.
         *
         * @param most greatest offset
         */
        public static Damage random(Random random, List<String> lanes, long most) {
            return new Damage(
                    KINDS.get(random.nextInt(KINDS.size())),
                    lanes.get(random.nextInt(lanes.size())),
                    logUniform(random, most + 1) - 1,
                    (int) logUniform(random, LONGEST_SPAN));
        }

        private static long logUniform(Random random, long most) {
            return Math.clamp(Math.round(Math.exp(random.nextDouble() * Math.log(most))), 1, most);
        }
    }

    /** Bytes to be passed on, and whether the connection ends behind them. */
    record Passed(byte[] bytes, boolean ends) {}

    /** Replaces the armed damage. */
    public synchronized void arm(Damage damage) {
        armed = Optional.of(damage);
        before = damage.after;
    }

    /** Withdraws the armed damage; false if it has happened. */
    public synchronized boolean disarm() {
        boolean was = armed.isPresent();
        armed = Optional.empty();
        return was;
    }

    /** Damages that have happened. */
    public synchronized int count() {
        return count;
    }

    /** Damages that have happened, by kind. */
    public synchronized Map<Kind, Integer> byKind() {
        return Map.copyOf(done);
    }

    synchronized Passed pass(String lane, byte[] bytes) {
        if (armed.filter(damage -> damage.lane.equals(lane)).isEmpty()) {
            return new Passed(bytes, false);
        }
        if (before >= bytes.length) {
            before -= bytes.length;
            return new Passed(bytes, false);
        }
        Damage damage = armed.get();
        int at = (int) before;
        before = 0;
        Passed passed = damaged(damage, bytes, at);
        if (passed.ends || !Arrays.equals(passed.bytes, bytes)) {
            armed = Optional.empty();
            count++;
            done.merge(damage.kind, 1, Integer::sum);
        }
        return passed;
    }

    private static Passed damaged(Damage damage, byte[] bytes, int at) {
        int span = Math.min(damage.span, bytes.length - at);
        byte[] head = Arrays.copyOf(bytes, at);
        byte[] rest = Arrays.copyOfRange(bytes, at, bytes.length);
        return switch (damage.kind) {
            case FLIP -> {
                rest[0] ^= (byte) (1 << damage.span % Byte.SIZE);
                yield new Passed(joined(head, rest), false);
            }
            case CUT -> new Passed(head, true);
            case DROP -> new Passed(joined(head, Arrays.copyOfRange(rest, span, rest.length)), false);
            case SWAP -> {
                int each = Math.min(span, rest.length / 2);
                byte[] swapped = rest.clone();
                System.arraycopy(rest, 0, swapped, each, each);
                System.arraycopy(rest, each, swapped, 0, each);
                yield new Passed(joined(head, swapped), false);
            }
            case REPEAT -> new Passed(joined(head, joined(Arrays.copyOf(rest, span), rest)), false);
        };
    }

    private static byte[] joined(byte[] first, byte[] second) {
        byte[] both = Arrays.copyOf(first, first.length + second.length);
        System.arraycopy(second, 0, both, first.length, second.length);
        return both;
    }
}
