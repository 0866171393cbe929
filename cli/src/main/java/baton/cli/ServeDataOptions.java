package baton.cli;

import baton.bench.serve.Backend;
import baton.bench.serve.ConversationData;
import baton.bench.serve.DataSet;
import baton.bench.serve.FileData;
import baton.bench.serve.PrefixRepetitionData;
import baton.bench.serve.RandomData;
import baton.kv.ConfigException;
import baton.kv.Require;
import java.nio.file.Path;
import java.util.List;
import java.util.OptionalInt;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** The prompts that {@code baton bench serve} sends. */
final class ServeDataOptions {
    private static final int ANSWER = 128;
    private static final int CUSTOM_ANSWER = 256;
    private static final List<String> INPUT_LENGTH = List.of("random", "conversation");

    @Option(
            names = "--dataset-name",
            defaultValue = "random",
            paramLabel = "NAME",
            description = "random, prefix_repetition, conversation (turns that begin with those before them),"
                    + " sharegpt or custom (default: ${DEFAULT-VALUE}).")
    private String name;

    @Option(names = "--dataset-path", paramLabel = "FILE", description = "File of sharegpt (JSON) or custom (JSONL).")
    private @Nullable Path path;

    @Option(
            names = "--num-prompts",
            defaultValue = "1000",
            paramLabel = "N",
            description = "Requests (default: ${DEFAULT-VALUE}).")
    private int prompts;

    @Option(
            names = "--input-len",
            paramLabel = "N",
            description = "For --random-input-len or --conversation-input-len.")
    private @Nullable Integer inputLen;

    @Option(names = "--output-len", paramLabel = "N", description = "For the data set's own option of that kind.")
    private @Nullable Integer outputLen;

    @Option(
            names = "--random-input-len",
            defaultValue = "1024",
            paramLabel = "N",
            description = "Tokens of a prompt after its prefix (default: ${DEFAULT-VALUE}).")
    private int randomInputLen;

    @Option(
            names = "--random-output-len",
            paramLabel = "N",
            description = "Tokens of an answer (default: " + ANSWER + ").")
    private @Nullable Integer randomOutputLen;

    @Option(
            names = "--random-range-ratio",
            defaultValue = "0.0",
            paramLabel = "R",
            description = "Lengths are uniform between 1 - R and 1 + R of these; or JSON, {\"input\": R, \"output\": R}"
                    + " (default: ${DEFAULT-VALUE}).")
    private String randomRangeRatio;

    @Option(
            names = "--random-prefix-len",
            defaultValue = "0",
            paramLabel = "N",
            description = "Tokens that all random prompts begin with (default: ${DEFAULT-VALUE}).")
    private int randomPrefixLen;

    @Option(
            names = "--prefix-repetition-num-prefixes",
            defaultValue = "10",
            paramLabel = "N",
            description = "Prefixes, for prefix_repetition (default: ${DEFAULT-VALUE}).")
    private int prefixes;

    @Option(
            names = "--prefix-repetition-prefix-len",
            defaultValue = "256",
            paramLabel = "N",
            description = "Tokens of each (default: ${DEFAULT-VALUE}).")
    private int prefixLen;

    @Option(
            names = "--prefix-repetition-suffix-len",
            defaultValue = "256",
            paramLabel = "N",
            description = "Tokens after it (default: ${DEFAULT-VALUE}).")
    private int suffixLen;

    @Option(
            names = "--prefix-repetition-output-len",
            paramLabel = "N",
            description = "Tokens of an answer (default: " + ANSWER + ").")
    private @Nullable Integer prefixOutputLen;

    @Option(
            names = "--conversation-turns",
            defaultValue = "4",
            paramLabel = "N",
            description = "Turns of each conversation (default: ${DEFAULT-VALUE}).")
    private int turns;

    @Option(
            names = "--conversation-input-len",
            defaultValue = "128",
            paramLabel = "N",
            description = "Tokens of each question (default: ${DEFAULT-VALUE}).")
    private int questionLen;

    @Option(
            names = "--conversation-output-len",
            paramLabel = "N",
            description = "Tokens of each answer (default: " + ANSWER + ").")
    private @Nullable Integer conversationOutputLen;

    @Option(
            names = "--sharegpt-output-len",
            paramLabel = "N",
            description = "Tokens of an answer (default: those of the file's answer).")
    private @Nullable Integer sharegptOutputLen;

    @Option(
            names = "--custom-output-len",
            paramLabel = "N",
            description = "Tokens of an answer; -1: the file's output_tokens (default: " + CUSTOM_ANSWER + ").")
    private @Nullable Integer customOutputLen;

    @Option(
            names = "--skip-chat-template",
            description = "Send custom's prompts as they are, without the chat template; the server applies it with"
                    + " openai-chat in any case.")
    private boolean skipChatTemplate;

    @Option(names = "--disable-shuffle", description = "Keep the order of the file or of the prefixes.")
    private boolean disableShuffle;

    @Option(names = "--no-oversample", description = "Do not repeat a file's prompts if there are fewer than wanted.")
    private boolean noOversample;

    int prompts() {
        Require.atLeast("num-prompts", prompts, 1);
        return prompts;
    }

    DataSet dataSet(Backend backend) {
        if (inputLen != null && !INPUT_LENGTH.contains(name)) {
            throw new ConfigException(
                    "input-len", "is " + inputLen + ", which dataset-name " + name + " does not take");
        }
        return switch (name) {
            case "random" -> {
                withoutFile();
                JsonNode ratio = ratio();
                yield new RandomData(
                        randomPrefixLen,
                        inputLen == null ? randomInputLen : inputLen,
                        output(randomOutputLen, ANSWER),
                        ratio.isObject() ? ratio.path("input").asDouble(-1) : ratio.asDouble(),
                        ratio.isObject() ? ratio.path("output").asDouble(-1) : ratio.asDouble());
            }
            case "prefix_repetition" -> {
                withoutFile();
                yield new PrefixRepetitionData(
                        prefixes, prefixLen, suffixLen, output(prefixOutputLen, ANSWER), !disableShuffle);
            }
            case "conversation" -> {
                withoutFile();
                yield new ConversationData(
                        turns, inputLen == null ? questionLen : inputLen, output(conversationOutputLen, ANSWER));
            }
            case "sharegpt" -> {
                Integer output = outputLen != null ? outputLen : sharegptOutputLen;
                yield new FileData(
                        FileData.Format.SHAREGPT,
                        file(),
                        output == null ? OptionalInt.empty() : positive("sharegpt-output-len", output),
                        new FileData.Order(!disableShuffle, !noOversample, false));
            }
            case "custom" -> {
                int output = output(customOutputLen, CUSTOM_ANSWER);
                yield new FileData(
                        FileData.Format.CUSTOM,
                        file(),
                        output == -1 ? OptionalInt.empty() : positive("custom-output-len", output),
                        new FileData.Order(
                                !disableShuffle, !noOversample, !skipChatTemplate && backend != Backend.OPENAI_CHAT));
            }
            default ->
                throw ConfigException.unsupported(
                        "dataset-name", name, "random, prefix_repetition, conversation, sharegpt, custom");
        };
    }

    private static OptionalInt positive(String field, int value) {
        Require.atLeast(field, value, 1);
        return OptionalInt.of(value);
    }

    private int output(@Nullable Integer own, int otherwise) {
        return outputLen != null ? outputLen : own != null ? own : otherwise;
    }

    private JsonNode ratio() {
        try {
            JsonNode ratio = JsonMapper.builder().build().readTree(randomRangeRatio);
            if (ratio.isNumber() || ratio.isObject()) {
                return ratio;
            }
        } catch (JacksonException e) {
            // Reported below.
        }
        throw new ConfigException(
                "random-range-ratio",
                "is '" + randomRangeRatio + "', must be a number or JSON such as {\"input\": 0.3, \"output\": 0.5}");
    }

    private void withoutFile() {
        if (path != null) {
            throw new ConfigException(
                    "dataset-path", "is '" + path + "', which dataset-name " + name + " does not take");
        }
    }

    private Path file() {
        if (path == null) {
            throw new ConfigException("dataset-path", "is missing, dataset-name " + name + " needs a file");
        }
        return path;
    }
}
