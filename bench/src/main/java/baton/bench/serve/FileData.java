package baton.bench.serve;

import baton.kv.ConfigException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.JsonNodeFactory;

/**
 * Prompts of a file: {@code sharegpt}, an array of conversations of which the first two messages are a prompt and an answer of which the
 * length is asked for; or {@code custom}, lines of {@code {"prompt": "...", "output_tokens": 10}}.
 *
 * @param format of the file
 * @param path of the file
 * @param output tokens to ask for; empty: as in the file
 * @param order of the prompts, and their changes before they are sent
 */
public record FileData(Format format, Path path, OptionalInt output, Order order) implements DataSet {
    private static final JsonMapper JSON = JsonMapper.builder().build();

    /** The fewest tokens of a conversation that vLLM takes. */
    private static final int LEAST_TOKENS = 4;

    private static final int MOST_PROMPT_TOKENS = 1024;
    private static final int MOST_TOKENS = 2048;

    /** The format of a file. */
    public enum Format {
        SHAREGPT,
        CUSTOM
    }

    /**
     * @param shuffled whether the prompts are in random order, else in that of the file
     * @param repeated whether prompts are sent again if the file has too few
     * @param chat whether prompts of {@code custom} are put into the model's chat template
     */
    public record Order(boolean shuffled, boolean repeated, boolean chat) {}

    @Override
    public List<Sample> samples(BenchTokenizer tokens, int count, long seed) throws IOException {
        List<JsonNode> entries = new ArrayList<>(
                switch (format) {
                    case SHAREGPT -> conversations();
                    case CUSTOM -> lines();
                });
        Random random = new Random(seed);
        if (order.shuffled()) {
            Collections.shuffle(entries, random);
        }
        List<Sample> samples = new ArrayList<>();
        for (JsonNode entry : entries) {
            if (samples.size() == count) {
                break;
            }
            switch (format) {
                case SHAREGPT -> conversation(entry, tokens).ifPresent(samples::add);
                case CUSTOM -> samples.add(custom(entry, tokens));
            }
        }
        if (samples.isEmpty()) {
            throw new ConfigException("dataset-path", "is '" + path + "', which has no prompt that can be used");
        }
        int own = samples.size();
        while (order.repeated() && samples.size() < count) {
            samples.add(samples.get(random.nextInt(own)));
        }
        return samples;
    }

    private List<JsonNode> conversations() throws IOException {
        try (InputStream in = Files.newInputStream(path)) {
            JsonNode root = JSON.readTree(in);
            if (!root.isArray()) {
                throw new ConfigException("dataset-path", "is '" + path + "', must be a JSON array of conversations");
            }
            return root.valueStream()
                    .filter(entry -> entry.path("conversations").size() >= 2)
                    .toList();
        } catch (JacksonException e) {
            throw new ConfigException("dataset-path", "is '" + path + "', no JSON: " + e.getOriginalMessage(), e);
        }
    }

    private List<JsonNode> lines() throws IOException {
        List<JsonNode> entries = new ArrayList<>();
        int number = 0;
        for (String line : Files.readAllLines(path, StandardCharsets.UTF_8)) {
            number++;
            if (line.isBlank()) {
                continue;
            }
            String where = "line " + number + " of " + path;
            JsonNode entry;
            try {
                entry = JSON.readTree(line);
            } catch (JacksonException e) {
                throw new ConfigException("dataset-path", where + " is no JSON: " + e.getOriginalMessage(), e);
            }
            if (!entry.path("prompt").isString()) {
                throw new ConfigException("dataset-path", where + " has no prompt, must be a string");
            }
            if (output.isEmpty() && entry.path("output_tokens").asInt(0) < 1) {
                throw new ConfigException(
                        "dataset-path",
                        where + " has no output_tokens, which must be a positive number unless custom-output-len is");
            }
            entries.add(entry);
        }
        return entries;
    }

    private Optional<Sample> conversation(JsonNode entry, BenchTokenizer tokens) throws IOException {
        String prompt = entry.path("conversations").path(0).path("value").asString("");
        String answer = entry.path("conversations").path(1).path("value").asString("");
        int length = tokens.encode(prompt, true).length;
        int wanted = output.isPresent() ? output.getAsInt() : tokens.encode(answer, true).length;
        boolean fits = length >= LEAST_TOKENS
                && (output.isPresent() || wanted >= LEAST_TOKENS)
                && length <= MOST_PROMPT_TOKENS
                && length + wanted <= MOST_TOKENS;
        return fits
                ? Optional.of(new Sample(JsonNodeFactory.instance.stringNode(prompt), length, wanted))
                : Optional.empty();
    }

    private Sample custom(JsonNode entry, BenchTokenizer tokens) throws IOException {
        String prompt = entry.path("prompt").asString("");
        String sent = order.chat() ? tokens.chat(prompt) : prompt;
        return new Sample(
                JsonNodeFactory.instance.stringNode(sent),
                tokens.encode(sent, true).length,
                output.orElseGet(() -> entry.path("output_tokens").asInt()));
    }
}
