package baton.bench.serve;

import baton.kv.ConfigException;
import java.util.List;
import java.util.Optional;
import java.util.OptionalDouble;

/** The limits of a request that counts for goodput; milliseconds. Empty ones do not matter. */
public record Objectives(OptionalDouble ttft, OptionalDouble tpot, OptionalDouble e2el) {
    /** No request counts. */
    public static final Objectives NONE =
            new Objectives(OptionalDouble.empty(), OptionalDouble.empty(), OptionalDouble.empty());

    /**
     * Reads pairs such as {@code ttft:500}.
     *
     * @throws ConfigException naming the pair that is malformed
     */
    public static Objectives parse(List<String> pairs) {
        Objectives objectives = NONE;
        for (String pair : pairs) {
            String[] parts = pair.split(":", -1);
            Optional<Double> millis = parts.length == 2 ? number(parts[1]) : Optional.empty();
            if (millis.isEmpty()) {
                throw new ConfigException(
                        "goodput", "has '" + pair + "', must be a name, a colon and milliseconds, such as ttft:500");
            }
            OptionalDouble value = OptionalDouble.of(millis.get());
            objectives = switch (parts[0]) {
                case "ttft" -> new Objectives(value, objectives.tpot, objectives.e2el);
                case "tpot" -> new Objectives(objectives.ttft, value, objectives.e2el);
                case "e2el" -> new Objectives(objectives.ttft, objectives.tpot, value);
                default -> throw ConfigException.unsupported("goodput", pair, "ttft, tpot, e2el");
            };
        }
        return objectives;
    }

    private static Optional<Double> number(String text) {
        try {
            return Optional.of(Double.parseDouble(text)).filter(value -> value >= 0);
        } catch (NumberFormatException e) {
            return Optional.empty();
        }
    }

    public boolean isNone() {
        return equals(NONE);
    }

    boolean keeps(Exchange each) {
        return each.succeeded()
                && each.ttftSeconds() * 1e3 <= ttft.orElse(Double.MAX_VALUE)
                && each.tpotSeconds() * 1e3 <= tpot.orElse(Double.MAX_VALUE)
                && each.latencySeconds() * 1e3 <= e2el.orElse(Double.MAX_VALUE);
    }
}
