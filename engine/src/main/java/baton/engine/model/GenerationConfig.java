package baton.engine.model;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.OptionalInt;

/**
 * Which generation_config.json is in force: vLLM's {@code --generation-config} and {@code --override-generation-config}.
 *
 * @param source {@value #AUTO} for the checkpoint's; {@value #VLLM} for the same without its parameters of sampling; else a directory
 *     that has the file
 * @param overrides parameters of sampling that win over the file's, by the same names
 */
public record GenerationConfig(String source, JsonFields overrides) {
    public static final String AUTO = "auto";
    public static final String VLLM = "vllm";

    /** The name of {@link #overrides} in errors. */
    public static final String OVERRIDES = "override_generation_config";

    /** The checkpoint's, without changes. */
    public static final GenerationConfig CHECKPOINT = new GenerationConfig(AUTO, JsonFields.empty(OVERRIDES));

    static final String FILE = "generation_config.json";

    /** @throws ConfigException if another directory is named and has no such file */
    Optional<JsonFields> read(Path checkpoint) throws IOException {
        Path file = (isOwn() ? checkpoint : Path.of(source)).resolve(FILE);
        if (Files.exists(file)) {
            return Optional.of(Checkpoint.readJson(file));
        }
        if (!isOwn()) {
            throw new ConfigException(
                    "generation_config",
                    "is '%s', must be auto, vllm, or a directory that has a %s".formatted(source, FILE));
        }
        return Optional.empty();
    }

    /** The parameters of sampling that it makes of the file, if there is one. */
    GenerationDefaults defaults(Optional<JsonFields> file) {
        JsonFields fields = file.filter(_ -> !source.equals(VLLM)).orElseGet(() -> JsonFields.empty(FILE));
        OptionalInt maxTokens = integer("max_new_tokens", 1, fields);
        return new GenerationDefaults(
                number("temperature", fields),
                number("top_p", fields),
                integer("top_k", -1, fields),
                number("min_p", fields),
                number("repetition_penalty", fields),
                number("presence_penalty", fields),
                number("frequency_penalty", fields),
                maxTokens,
                isOwn() ? integer("max_new_tokens", 1, JsonFields.empty(FILE)) : maxTokens);
    }

    /** The error for a value that no request may have: it would be the default of requests. */
    public ConfigException refusal(ConfigException ofParameter) {
        String field = ofParameter.field();
        String path = overrides.names().contains(field) ? overrides.field(field) : FILE + "." + field;
        return new ConfigException(
                path, String.valueOf(ofParameter.getMessage()).substring(field.length() + 2), ofParameter);
    }

    /** For people. */
    public String describe() {
        String file = isOwn() ? FILE : Path.of(source).resolve(FILE).toString();
        return source.equals(VLLM) ? OVERRIDES : overrides.isEmpty() ? file : file + " and " + OVERRIDES;
    }

    private boolean isOwn() {
        return source.equals(AUTO) || source.equals(VLLM);
    }

    /** A field that is overridden by null has the value that vLLM gives it, whatever the file says. */
    private JsonFields winner(String name, JsonFields file) {
        return overrides.names().contains(name) ? overrides : file;
    }

    private OptionalDouble number(String name, JsonFields file) {
        return winner(name, file).number(name).map(OptionalDouble::of).orElseGet(OptionalDouble::empty);
    }

    private OptionalInt integer(String name, int least, JsonFields file) {
        return winner(name, file)
                .integerAtLeast(name, least)
                .map(OptionalInt::of)
                .orElseGet(OptionalInt::empty);
    }
}
