package baton.server;

import baton.engine.Engine;
import baton.engine.text.Tokenizer;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.function.BiFunction;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/** Reads prompts as token ids. Limits are checked before and while a text is encoded. Stateless; any thread. */
record Prompts(ServerConfig config, Engine engine) {
    /** Most tokens of a {@code /tokenize} answer, unless the model takes more. */
    private static final int MAX_LISTED = 1 << 20;

    /**
     * The part of a prompt that is kept.
     *
     * @param tokens that are kept at most
     * @param beginning whether they are the first, not the last
     */
    record Kept(int tokens, boolean beginning) {}

    /**
     * The part of a prompt that is kept; empty for all.
     *
     * @param asked the request's {@code truncate_prompt_tokens}
     * @param side its {@code truncation_side}, where tokens are left out
     * @param maxTokens of the output
     */
    Optional<Kept> kept(Optional<Integer> asked, Optional<String> side, int maxTokens) {
        boolean beginning = switch (side.orElse("left")) {
            case "left" -> false;
            case "right" -> true;
            default -> throw ConfigException.unsupported("truncation_side", side.get(), "left, right");
        };
        if (asked.isEmpty()) {
            return Optional.empty();
        }
        int most = engine.maxModelLen() - 1;
        if (asked.get() < -1 || asked.get() == 0 || asked.get() > most) {
            throw ApiException.badField(
                    "truncate_prompt_tokens",
                    "is " + asked.get() + ", must be between 1 and " + most
                            + ", or -1 for as many as fit with the output");
        }
        int tokens = asked.get() == -1 ? Math.clamp(engine.maxModelLen() - (long) maxTokens, 1, most) : asked.get();
        return Optional.of(new Kept(tokens, beginning));
    }

    /** The part of the prompt that is kept. */
    static int[] truncated(int[] ids, Optional<Kept> kept) {
        if (kept.isEmpty() || ids.length <= kept.get().tokens) {
            return ids;
        }
        int from = kept.get().beginning ? 0 : ids.length - kept.get().tokens;
        return Arrays.copyOfRange(ids, from, from + kept.get().tokens);
    }

    /** The ids of a prompt; of one to be truncated, at least those that are kept. */
    int[] encode(String field, String text, boolean addSpecialTokens, Optional<Kept> kept, Preparation preparation) {
        Tokenizer tokenizer = engine.tokenizer();
        int most = kept.isPresent() ? Integer.MAX_VALUE : engine.maxModelLen() - 1;
        String wanted = text;
        if (kept.isPresent()) {
            int tokens = kept.get().tokens;
            wanted = kept.get().beginning ? tokenizer.head(text, tokens) : tokenizer.tail(text, tokens);
        } else {
            long least = tokenizer.leastTokens(text);
            if (least > most) {
                throw tooLong("at least " + least);
            }
        }
        int[] ids = requireNotEmpty(
                field,
                tokenizer.encode(
                        wanted,
                        addSpecialTokens,
                        preparation.encoding(field, most, tokens -> tooLong("at least " + tokens))));
        return addSpecialTokens && kept.isPresent()
                ? tokenizer.truncated(ids, kept.get().tokens, kept.get().beginning)
                : ids;
    }

    /** The ids of a text for {@code /tokenize}; they need not fit the model. */
    int[] list(String field, String text, boolean addSpecialTokens, Preparation preparation) {
        int most = mostListed();
        long least = engine.tokenizer().leastTokens(text);
        if (least > most) {
            throw tooManyListed(field, least);
        }
        int[] ids = engine.tokenizer()
                .encode(
                        text,
                        addSpecialTokens,
                        preparation.encoding(field, most, tokens -> tooManyListed(field, tokens)));
        if (ids.length > most) {
            throw tooManyListed(field, ids.length);
        }
        return ids;
    }

    int mostListed() {
        return Math.max(MAX_LISTED, engine.maxModelLen());
    }

    private ApiException tooManyListed(String field, long least) {
        return ApiException.badField(
                field, "has at least " + least + " tokens, must have at most " + mostListed() + " here");
    }

    static int[] requireNotEmpty(String field, int[] ids) {
        if (ids.length == 0) {
            throw ApiException.badField(field, "is empty, must be at least one token");
        }
        return ids;
    }

    /** @throws ApiException if prompt and output do not fit the model */
    void requireFits(int[] ids, Optional<Integer> maxTokens, String maxTokensField) {
        int limit = engine.maxModelLen();
        if (ids.length >= limit) {
            throw tooLong(Integer.toString(ids.length));
        }
        if (maxTokens.isPresent() && maxTokens.get() > limit - ids.length) {
            throw ApiException.badField(
                    maxTokensField,
                    "is " + maxTokens.get() + ", must be at most " + (limit - ids.length)
                            + ": prompt and output together may have " + limit + " tokens and the prompt has "
                            + ids.length);
        }
    }

    private ApiException tooLong(String tokens) {
        int limit = engine.maxModelLen();
        return ApiException.badRequest(
                // Clients look for the words "maximum context length", OpenAI's and vLLM's.
                "This model's maximum context length is " + limit + " tokens, output included, but the prompt has "
                        + tokens + "; it must have at most " + (limit - 1));
    }

    /** The token ids of {@code prompt}, of one prompt or several. */
    List<int[]> read(
            JsonFields fields, Optional<JsonFields> kvTransferParams, BiFunction<String, String, int[]> encode) {
        Optional<int[]> handedOver = handedOver(kvTransferParams);
        if (handedOver.isPresent()) {
            return List.of(handedOver.get());
        }
        String wanted = "must be a string, an array of strings, an array of token ids or an array of such arrays";
        JsonNode prompt =
                fields.value("prompt").orElseThrow(() -> ApiException.badField("prompt", "is missing, " + wanted));
        if (prompt.isString()) {
            return List.of(encode.apply("prompt", RequestFields.string("prompt", prompt)));
        }
        if (!prompt.isArray() || prompt.isEmpty()) {
            throw ApiException.badField("prompt", wanted + ", is " + Json.shown(prompt));
        }
        if (prompt.get(0).isIntegralNumber()) {
            return List.of(requireNotEmpty("prompt", tokenIds("prompt", prompt)));
        }
        List<int[]> prompts = new ArrayList<>();
        for (JsonNode element : prompt) {
            String name = "prompt[" + prompts.size() + "]";
            if (element.isString() && prompt.get(0).isString()) {
                prompts.add(encode.apply(name, RequestFields.string(name, element)));
            } else if (element.isArray() && prompt.get(0).isArray()) {
                prompts.add(requireNotEmpty(name, tokenIds(name, element)));
            } else {
                throw ApiException.badField(
                        name,
                        "must be " + (prompt.get(0).isString() ? "a string" : "an array of token ids") + ", is "
                                + Json.shown(element));
            }
        }
        return prompts;
    }

    /** The prompt's token ids from a prefill instance, so that the decode instance need not tokenize. */
    Optional<int[]> handedOver(Optional<JsonFields> kvTransferParams) {
        if (!config.kvPromptTokenIds()) {
            return Optional.empty();
        }
        return kvTransferParams.flatMap(params -> params.value("prompt_token_ids")
                .map(value -> requireNotEmpty(
                        params.field("prompt_token_ids"), tokenIds(params.field("prompt_token_ids"), value))));
    }

    /** The ids are not the connector's; empty if nothing else is there. */
    static Optional<JsonFields> forConnector(JsonFields kvTransferParams) {
        if (!kvTransferParams.names().contains("prompt_token_ids")) {
            return Optional.of(kvTransferParams);
        }
        ObjectNode others = kvTransferParams.toJson();
        others.remove("prompt_token_ids");
        return others.isEmpty() ? Optional.empty() : Optional.of(JsonFields.of("kv_transfer_params", others));
    }

    int[] tokenIds(String field, JsonNode array) {
        if (!array.isArray()) {
            throw ApiException.badField(field, "must be an array of token ids, is " + Json.shown(array));
        }
        int vocabulary = engine.model().vocabularySize();
        int[] ids = new int[array.size()];
        for (int i = 0; i < ids.length; i++) {
            JsonNode element = array.get(i);
            if (!element.isIntegralNumber() || !element.canConvertToInt()) {
                throw ApiException.badField(field + "[" + i + "]", "must be a token id, is " + Json.shown(element));
            }
            ids[i] = element.asInt();
            if (ids[i] < 0 || ids[i] >= vocabulary) {
                requireInVocabulary(field + "[" + i + "]", ids[i]);
            }
        }
        return ids;
    }

    void requireInVocabulary(String field, int id) {
        int size = engine.model().vocabularySize();
        if (id < 0 || id >= size) {
            throw ApiException.badField(
                    field, "token id " + id + " is not in the vocabulary, must be between 0 and " + (size - 1));
        }
    }
}
