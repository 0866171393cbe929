package baton.bench.disagg;

import java.util.Locale;
import java.util.OptionalInt;

/**
 * A way to serve.
 *
 * @param disaggregated whether prompts are computed by another instance than answers
 * @param budget tokens of a step, of a colocated instance that this program started
 */
public record Setup(boolean disaggregated, OptionalInt budget) {
    static final Setup DISAGGREGATED = new Setup(true, OptionalInt.empty());
    static final Setup COLOCATED = new Setup(false, OptionalInt.empty());

    static Setup colocated(int budget) {
        return new Setup(false, OptionalInt.of(budget));
    }

    /** The label, such as {@code colocated, chunks of 512}. */
    public String label() {
        if (disaggregated) {
            return "disaggregated (1P1D)";
        }
        return budget.isPresent()
                ? String.format(Locale.ROOT, "colocated, chunks of %,d", budget.getAsInt())
                : "colocated";
    }
}
