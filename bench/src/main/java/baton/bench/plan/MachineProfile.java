package baton.bench.plan;

import baton.kv.ConfigException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * How fast one instance on one machine is. All times in seconds.
 *
 * @param name of the machine, for reports
 * @param units that an instance occupies, e.g. its tensor parallel size
 * @param prefill of a prompt alone, by its tokens
 * @param step that generates a token for each of so many sequences with a short context
 * @param perContextToken seconds that each token of context of each sequence adds to such a step
 * @param mixed how much of a prompt's time is added to a step that also generates tokens: 1 if nothing of it overlaps
 * @param handoff from the end of a prefill to the decode instance's first step, by the prompt's tokens, for each connector
 * @param maxSequences that are generated at once
 */
public record MachineProfile(
        String name,
        int units,
        Curve prefill,
        Curve step,
        double perContextToken,
        double mixed,
        Map<String, Curve> handoff,
        int maxSequences) {
    private static final JsonMapper JSON = JsonMapper.builder().build();

    public MachineProfile {
        handoff = new LinkedHashMap<>(handoff);
    }

    /** Seconds of a step that generates a token for each of {@code sequences}, which have {@code context} tokens together. */
    double stepSeconds(int sequences, long context) {
        return sequences == 0 ? 0 : step.at(sequences) + perContextToken * context;
    }

    /** The seconds that the tokens {@code [from, to)} of a prompt add to a step. */
    double promptSeconds(int from, int to) {
        double overhead = prefill.at(0);
        double before = from == 0 ? 0 : prefill.at(from) - overhead;
        return Math.max(0, prefill.at(to) - overhead - before);
    }

    /** The profile as JSON, for {@link #read}. */
    public ObjectNode toJson() {
        ObjectNode node = JSON.createObjectNode();
        node.put("name", name).put("units", units);
        write(node.putArray("prefill_seconds"), "tokens", prefill);
        write(node.putArray("step_seconds"), "sequences", step);
        node.put("seconds_per_context_token", perContextToken)
                .put("mixed", mixed)
                .put("max_sequences", maxSequences);
        ObjectNode connectors = node.putObject("handoff_seconds");
        handoff.forEach((connector, curve) -> write(connectors.putArray(connector), "tokens", curve));
        return node;
    }

    private static void write(ArrayNode array, String x, Curve curve) {
        curve.points()
                .forEach(point -> array.addObject().put(x, (int) point.x()).put("seconds", point.value()));
    }

    /**
     * Reads a profile that {@link #toJson} wrote.
     *
     * @throws ConfigException naming the field that is missing or wrong
     * @throws IOException if the file cannot be read
     */
    public static MachineProfile read(Path file) throws IOException {
        JsonNode node;
        try {
            node = JSON.readTree(Files.readString(file));
        } catch (JacksonException e) {
            throw new ConfigException("profile", file + " is no JSON: " + e.getOriginalMessage(), e);
        }
        Map<String, Curve> handoff = new LinkedHashMap<>();
        node.path("handoff_seconds")
                .propertyStream()
                .forEach(each -> handoff.put(
                        each.getKey(), curve(file, "handoff_seconds." + each.getKey(), each.getValue(), "tokens")));
        return new MachineProfile(
                node.path("name").asString(file.getFileName().toString()),
                whole(file, node, "units"),
                curve(file, "prefill_seconds", node.path("prefill_seconds"), "tokens"),
                curve(file, "step_seconds", node.path("step_seconds"), "sequences"),
                number(file, node, "seconds_per_context_token", 0),
                number(file, node, "mixed", 0),
                handoff,
                whole(file, node, "max_sequences"));
    }

    private static int whole(Path file, JsonNode node, String field) {
        JsonNode value = node.path(field);
        if (!value.isInt() || value.asInt() < 1) {
            throw new ConfigException(
                    "profile", "%s: %s is %s, must be a whole number of at least 1".formatted(file, field, value));
        }
        return value.asInt();
    }

    private static double number(Path file, JsonNode node, String field, double least) {
        JsonNode value = node.path(field);
        if (!value.isNumber() || value.asDouble() < least) {
            throw new ConfigException(
                    "profile", "%s: %s is %s, must be a number of at least %s".formatted(file, field, value, least));
        }
        return value.asDouble();
    }

    private static Curve curve(Path file, String field, JsonNode array, String x) {
        List<Curve.Point> points = new ArrayList<>();
        for (JsonNode point : array) {
            if (!(point.path(x).asDouble(-1) >= 0) || !(point.path("seconds").asDouble(-1) >= 0)) {
                throw new ConfigException(
                        "profile",
                        "%s: %s has %s, must have objects with %s and seconds, not negative"
                                .formatted(file, field, point, x));
            }
            points.add(new Curve.Point(
                    point.path(x).asDouble(), point.path("seconds").asDouble()));
        }
        if (points.isEmpty()) {
            throw new ConfigException("profile", "%s: %s is missing".formatted(file, field));
        }
        return new Curve(points);
    }
}
