package baton.server.grpc;

import java.util.Map;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * {@code vllm.GenerateRequest} of vLLM's {@code inference.proto} as the fields of a completion. Zero and empty mean the default where the
 * message says so; the temperature's default is 0. {@code kv_hints}, {@code engine_reasoning_gate} and {@code bypass_prefix_cache}, which
 * change no answer of this server, are left out.
 */
public final class GenerateMessage {
    /** Fields of which the answer takes notice, beside those of a completion. */
    public static final String SHOWS_PROMPT_IDS = "prompt_token_ids";

    public static final String SHOWS_TEXT = "output_text";

    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

    /** The message's names of fields that a completion calls otherwise. */
    private static final Map<String, String> NAMES = Map.ofEntries(
            Map.entry("n", "sampling.num_sequences"),
            Map.entry("top_k", "sampling.top_k"),
            Map.entry("top_p", "sampling.top_p"),
            Map.entry("min_p", "sampling.min_p"),
            Map.entry("seed", "sampling.seed"),
            Map.entry("presence_penalty", "decoding.presence_penalty"),
            Map.entry("frequency_penalty", "decoding.frequency_penalty"),
            Map.entry("repetition_penalty", "decoding.repetition_penalty"),
            Map.entry("logit_bias", "decoding.logit_bias"),
            Map.entry("allowed_token_ids", "decoding.allowed_token_ids"),
            Map.entry("structured_outputs", "decoding"),
            Map.entry("bad_words_token_ids", "decoding.bad_words_token_ids"),
            Map.entry("max_tokens", "stopping.max_new_tokens"),
            Map.entry("min_tokens", "stopping.min_new_tokens"),
            Map.entry("stop_token_ids", "stopping.stop_token_ids"),
            Map.entry("stop", "stopping.stop_strings"),
            Map.entry("thinking_token_budget", "stopping.thinking_token_budget"),
            Map.entry("logprobs", "response.output_candidates"),
            Map.entry("logprob_token_ids", "response.output_candidates.token_ids"),
            Map.entry("prompt_logprobs", "response.prompt_candidates"),
            Map.entry("cache_salt", "kv.cache_salt"),
            Map.entry("kv_transfer_params", "kv.kv_transfer_params"),
            Map.entry("ec_transfer_params", "kv.ec_transfer_params"));

    private final ObjectNode fields = NODES.objectNode().put("temperature", 0).put(SHOWS_TEXT, true);

    private GenerateMessage() {}

    /**
     * Reads a message.
     *
     * @param stream whether the output is sent while it comes
     * @throws baton.kv.ConfigException if the message is malformed, with its path
     */
    public static ObjectNode read(byte[] message, boolean stream) {
        GenerateMessage read = new GenerateMessage();
        read.request(ProtoReader.of("GenerateRequest", message));
        return read.fields.put("stream", stream);
    }

    /** The message's name of a completion's field. */
    public static String origin(String field) {
        int end = 0;
        while (end < field.length() && field.charAt(end) != '.' && field.charAt(end) != '[') {
            end++;
        }
        String name = field.substring(0, end);
        return NAMES.getOrDefault(name, name) + field.substring(end);
    }

    private void request(ProtoReader in) {
        while (in.next()) {
            switch (in.field()) {
                case 1 -> text("request_id", in);
                case 2 -> text("model", in);
                case 3 -> fields.put("prompt", in.string());
                case 4 -> fields.set("prompt", ids(in.message("token_ids")));
                case 5 -> fields.put("temperature", in.number());
                case 6 -> sampling(in.message("sampling"));
                case 7 -> decoding(in.message("decoding"));
                case 8 -> stopping(in.message("stopping"));
                case 9 -> response(in.message("response"));
                case 10 -> kv(in.message("kv"));
                case 11 -> number("truncate_prompt_tokens", in.unsigned());
                case 12 -> fields.put("priority", (int) in.integer());
                case 13 -> text("session_id", in);
                case 14 -> {
                    in.skip();
                    fields.put("media", true);
                }
                case 15 -> text("lora_name", in);
                case 16 -> fields.put("watermarking", in.bool());
                default -> in.skip();
            }
        }
    }

    private void sampling(ProtoReader in) {
        while (in.next()) {
            switch (in.field()) {
                case 1 -> number("n", in.unsigned());
                case 2 -> fields.put("top_k", in.unsigned());
                case 3 -> fields.put("top_p", in.number());
                case 4 -> fields.put("min_p", in.number());
                case 5 -> fields.put("seed", in.integer());
                default -> in.skip();
            }
        }
    }

    private void decoding(ProtoReader in) {
        while (in.next()) {
            switch (in.field()) {
                case 1 -> penalty("presence_penalty", in);
                case 2 -> penalty("frequency_penalty", in);
                case 3 -> penalty("repetition_penalty", in);
                case 4 -> bias(in.message("decoding.logit_bias"));
                case 5 -> in.eachUnsigned(fields.withArray("allowed_token_ids")::add);
                case 6 -> format().put("json", in.string());
                case 7 -> format().put("regex", in.string());
                case 8 -> {
                    ProtoReader choices = in.message("decoding.choice");
                    ArrayNode texts = format().putArray("choice");
                    while (choices.next()) {
                        if (choices.field() == 1) {
                            texts.add(choices.string());
                        } else {
                            choices.skip();
                        }
                    }
                }
                case 9 -> format().put("grammar", in.string());
                case 10 -> {
                    if (in.bool()) {
                        format().put("json_object", true);
                    }
                }
                case 11 -> format().put("structural_tag", in.string());
                case 12 -> fields.withArray("bad_words_token_ids").add(ids(in.message("decoding.bad_words_token_ids")));
                default -> in.skip();
            }
        }
    }

    /** The format of the output. The last of several counts, as in each {@code oneof}. */
    private ObjectNode format() {
        return fields.putObject("structured_outputs");
    }

    private void bias(ProtoReader entry) {
        long id = 0;
        double value = 0;
        while (entry.next()) {
            switch (entry.field()) {
                case 1 -> id = entry.unsigned();
                case 2 -> value = entry.number();
                default -> entry.skip();
            }
        }
        fields.withObject("logit_bias").put(Long.toString(id), value);
    }

    private void stopping(ProtoReader in) {
        while (in.next()) {
            switch (in.field()) {
                case 1 -> number("max_tokens", in.unsigned());
                case 2 -> number("min_tokens", in.unsigned());
                case 3 -> in.eachUnsigned(fields.withArray("stop_token_ids")::add);
                case 4 -> fields.withArray("stop").add(in.string());
                case 5 -> fields.put("include_stop_str_in_output", in.bool());
                case 6 -> fields.put("ignore_eos", in.bool());
                case 7 -> fields.put("thinking_token_budget", in.integer());
                default -> in.skip();
            }
        }
    }

    private void response(ProtoReader in) {
        boolean promptLogprobs = false;
        boolean logprobs = false;
        ObjectNode promptCandidates = NODES.objectNode();
        ObjectNode candidates = NODES.objectNode();
        while (in.next()) {
            switch (in.field()) {
                case 1 -> fields.put(SHOWS_PROMPT_IDS, in.bool());
                case 2 -> promptLogprobs = in.bool();
                case 3 -> promptCandidates = candidates(in.message("response.prompt_candidates"), "prompt_logprobs");
                case 4 -> fields.put(SHOWS_TEXT, in.bool());
                case 5 -> fields.put("return_token_ids", in.bool());
                case 6 -> logprobs = in.bool();
                case 7 -> candidates = candidates(in.message("response.output_candidates"), "logprobs");
                case 8 -> fields.put("skip_special_tokens", in.bool());
                default -> in.skip();
            }
        }
        if (promptLogprobs) {
            fields.put("prompt_logprobs", 0).setAll(promptCandidates);
        }
        if (logprobs) {
            fields.put("logprobs", 0).setAll(candidates);
        }
    }

    /** The alternatives of each token that are shown. */
    private static ObjectNode candidates(ProtoReader in, String name) {
        ObjectNode selected = NODES.objectNode();
        while (in.next()) {
            switch (in.field()) {
                case 1 -> selected.put(name, in.unsigned());
                case 2 -> selected.set("logprob_token_ids", ids(in.message("response.output_candidates.token_ids")));
                case 3 -> {
                    if (in.bool()) {
                        selected.put(name, -1);
                    }
                }
                default -> in.skip();
            }
        }
        return selected;
    }

    private void kv(ProtoReader in) {
        while (in.next()) {
            switch (in.field()) {
                case 2 -> text("cache_salt", in);
                case 3 -> struct("kv_transfer_params", in);
                case 4 -> struct("ec_transfer_params", in);
                default -> in.skip();
            }
        }
    }

    private void struct(String name, ProtoReader in) {
        String path = "kv." + name;
        fields.set(name, ProtoStruct.read(path, in.message(path)));
    }

    private static ArrayNode ids(ProtoReader in) {
        ArrayNode ids = NODES.arrayNode();
        while (in.next()) {
            if (in.field() == 1) {
                in.eachUnsigned(ids::add);
            } else {
                in.skip();
            }
        }
        return ids;
    }

    private void text(String name, ProtoReader in) {
        String text = in.string();
        if (text.isEmpty()) {
            fields.remove(name);
        } else {
            fields.put(name, text);
        }
    }

    private void number(String name, long value) {
        if (value == 0) {
            fields.remove(name);
        } else {
            fields.put(name, value);
        }
    }

    private void penalty(String name, ProtoReader in) {
        double value = in.number();
        if (value == 0) {
            fields.remove(name);
        } else {
            fields.put(name, value);
        }
    }
}
