package baton.cli;

import baton.bench.serve.Arrivals;
import baton.bench.serve.Arrivals.Ramp;
import baton.bench.serve.Arrivals.Strategy;
import baton.bench.serve.ServeReport.Traffic;
import baton.kv.ConfigException;
import baton.kv.Require;
import java.util.Optional;
import java.util.OptionalInt;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/** When {@code baton bench serve} sends. */
final class ServeTrafficOptions {
    @Option(
            names = "--request-rate",
            defaultValue = "inf",
            paramLabel = "RATE",
            description = "Requests a second; inf: all at once (default: ${DEFAULT-VALUE}).")
    private String rate;

    @Option(
            names = "--burstiness",
            defaultValue = "1.0",
            paramLabel = "SHAPE",
            description = "Shape of the gamma distribution of the times between requests: 1 is a Poisson process, less"
                    + " comes in bursts, more is more regular, inf is regular (default: ${DEFAULT-VALUE}).")
    private String burstiness;

    @Option(
            names = "--ramp-up-strategy",
            paramLabel = "HOW",
            description = "linear or exponential: the rate grows over the run, in place of --request-rate.")
    private @Nullable String strategy;

    @Option(names = "--ramp-up-start-rps", paramLabel = "RATE", description = "Where the ramp begins.")
    private @Nullable Double start;

    @Option(names = "--ramp-up-end-rps", paramLabel = "RATE", description = "Where it ends.")
    private @Nullable Double end;

    @Option(
            names = "--max-concurrency",
            paramLabel = "N",
            description = "Requests at once; further due ones wait in the client (default: any number).")
    private @Nullable Integer most;

    Traffic traffic() {
        if (most != null) {
            Require.atLeast("max-concurrency", most, 1);
        }
        return new Traffic(
                new Arrivals(number("request-rate", rate), number("burstiness", burstiness), ramp()),
                most == null ? OptionalInt.empty() : OptionalInt.of(most));
    }

    private Optional<Ramp> ramp() {
        if (strategy == null) {
            if (start != null || end != null) {
                throw new ConfigException("ramp-up-strategy", "is missing, must be linear or exponential");
            }
            return Optional.empty();
        }
        if (start == null || end == null) {
            throw new ConfigException(
                    start == null ? "ramp-up-start-rps" : "ramp-up-end-rps",
                    "is missing, ramp-up-strategy needs both ends of the ramp");
        }
        Strategy how = switch (strategy) {
            case "linear" -> Strategy.LINEAR;
            case "exponential" -> Strategy.EXPONENTIAL;
            default -> throw ConfigException.unsupported("ramp-up-strategy", strategy, "linear, exponential");
        };
        return Optional.of(new Ramp(how, start, end));
    }

    private static double number(String field, String text) {
        if (text.equals("inf")) {
            return Double.POSITIVE_INFINITY;
        }
        try {
            return Double.parseDouble(text);
        } catch (NumberFormatException e) {
            throw new ConfigException(field, "is '" + text + "', must be a number or inf", e);
        }
    }
}
