package baton.server;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/** Requests of {@code /v1/responses} as requests of {@code /v1/chat/completions}, in the way of vLLM 0.32. Nothing is stored, whatever {@code store} says. */
final class ResponsesRequest {
    /** Fields that both have. */
    private static final List<String> COMMON = List.of(
            "model",
            "stream",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "seed",
            "stop",
            "stop_token_ids",
            "ignore_eos",
            "min_tokens",
            "logit_bias",
            "skip_special_tokens",
            "include_stop_str_in_output",
            "structured_outputs",
            "thinking_token_budget",
            "parallel_tool_calls",
            "include_reasoning",
            "chat_template",
            "chat_template_kwargs",
            "return_token_ids",
            "stream_interval",
            "mm_processor_kwargs",
            "media_io_kwargs",
            "vllm_xargs",
            "cache_salt",
            "priority",
            "user",
            "session_id",
            "kv_transfer_params",
            Continuation.FIELD);

    /** Fields that ask for responses of the past, or to keep this one. */
    private static final List<String> STORED =
            List.of("previous_response_id", "previous_input_messages", "conversation", "background");

    private static final List<String> REPEATED = List.of(
            "instructions",
            "metadata",
            "max_output_tokens",
            "max_tool_calls",
            "parallel_tool_calls",
            "tool_choice",
            "tools",
            "text",
            "reasoning",
            "prompt",
            "service_tier",
            "top_logprobs",
            "truncation",
            "user");

    private static final List<String> INCLUDED = List.of(
            "code_interpreter_call.outputs",
            "computer_call_output.output.image_url",
            "file_search_call.results",
            "message.input_image.image_url",
            "message.output_text.logprobs",
            "reasoning.encrypted_content");

    /** Fields of a chat, as patterns, and those that they come from. */
    private static final Map<String, String> ORIGINS = Map.of(
            "^max_(completion_)?tokens$", "max_output_tokens",
            "^messages.*", "input",
            "^reasoning_effort", "reasoning.effort",
            "^response_format(\\.json_schema)?", "text.format",
            "^(tools|tool_choice)(.*?)\\.function", "$1$2",
            "^tool_choice\\.allowed_tools", "tool_choice",
            "^truncate_prompt_tokens", "truncation");

    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

    private ResponsesRequest() {}

    /** The field that a field of the chat comes from. */
    static String origin(String field) {
        String origin = field;
        for (Map.Entry<String, String> each : ORIGINS.entrySet()) {
            origin = origin.replaceFirst(each.getKey(), each.getValue());
        }
        return origin;
    }

    /** @throws ConfigException naming the malformed field */
    static JsonFields asChat(JsonFields fields) {
        refuseUnsupported(fields);
        ObjectNode chat = NODES.objectNode();
        COMMON.forEach(name -> fields.value(name).ifPresent(value -> chat.set(name, value)));
        fields.value("max_output_tokens").ifPresent(most -> chat.set("max_completion_tokens", most));
        chat.set("messages", messages(fields));
        if (goesOn(fields)) {
            chat.put("continue_final_message", true).put("add_generation_prompt", false);
        }
        fields.object("reasoning")
                .flatMap(reasoning -> reasoning.string("effort"))
                .ifPresent(effort -> chat.put("reasoning_effort", effort));
        fields.object("text")
                .flatMap(text -> text.object("format"))
                .ifPresent(format -> chat.set("response_format", responseFormat(format)));
        fields.objects("tools").filter(tools -> !tools.isEmpty()).ifPresent(tools -> putTools(chat, tools));
        fields.value("tool_choice")
                .ifPresent(choice -> chat.set(
                        "tool_choice",
                        choice.isObject()
                                ? toolChoice(fields.object("tool_choice").get())
                                : choice));
        if (included(fields).contains("message.output_text.logprobs")) {
            chat.put("logprobs", true);
            fields.value("top_logprobs").ifPresent(top -> chat.set("top_logprobs", top));
        }
        if (isTruncated(fields)) {
            chat.put("truncate_prompt_tokens", -1);
        }
        return JsonFields.of("", chat);
    }

    /** The fields that the response repeats, with their defaults. */
    static JsonFields repeated(JsonFields fields) {
        ObjectNode repeated = NODES.objectNode();
        String choice =
                fields.objects("tools").filter(tools -> !tools.isEmpty()).isPresent() ? "auto" : "none";
        Map<String, JsonNode> defaults = Map.of(
                "parallel_tool_calls", NODES.booleanNode(true),
                "tool_choice", NODES.stringNode(choice),
                "tools", NODES.arrayNode(),
                "service_tier", NODES.stringNode("auto"),
                "truncation", NODES.stringNode("disabled"));
        for (String name : REPEATED) {
            repeated.set(name, fields.value(name).orElseGet(() -> defaults.getOrDefault(name, NODES.nullNode())));
        }
        return JsonFields.of("", repeated);
    }

    private static void refuseUnsupported(JsonFields fields) {
        for (String name : STORED) {
            fields.value(name).filter(RequestFields::isSet).ifPresent(value -> {
                throw ApiException.badField(
                        name,
                        "is " + Json.shown(value) + ", this server keeps no responses: send the conversation in input");
            });
        }
        for (String name : List.of("prompt", "enable_response_messages")) {
            fields.value(name).filter(RequestFields::isSet).ifPresent(value -> {
                throw RequestFields.unsupported(name, value);
            });
        }
    }

    private static List<String> included(JsonFields fields) {
        List<String> included = fields.strings("include").orElse(List.of());
        included.stream().filter(name -> !INCLUDED.contains(name)).findFirst().ifPresent(name -> {
            throw ConfigException.unsupported("include", name, String.join(", ", INCLUDED));
        });
        return included;
    }

    private static boolean isTruncated(JsonFields fields) {
        String truncation = fields.string("truncation").orElse("disabled");
        return switch (truncation) {
            case "auto" -> true;
            case "disabled" -> false;
            default -> throw ConfigException.unsupported("truncation", truncation, "auto, disabled");
        };
    }

    /** The fields of a tool, or of the choice of one, in an object of their own. */
    private static ObjectNode function(JsonFields flat, String type) {
        ObjectNode own = flat.toJson();
        JsonNode given = own.remove("type");
        ObjectNode chat = NODES.objectNode();
        chat.set("type", given == null ? NODES.stringNode(type) : given);
        chat.set(type, own);
        return chat;
    }

    private static void putTools(ObjectNode to, List<JsonFields> tools) {
        ArrayNode functions = to.putArray("tools");
        tools.forEach(tool -> functions.add(function(tool, "function")));
    }

    private static ObjectNode toolChoice(JsonFields choice) {
        if (!choice.string("type").equals(Optional.of("allowed_tools"))) {
            return function(choice, "function");
        }
        ObjectNode allowed = function(choice, "allowed_tools");
        choice.objects("tools").ifPresent(tools -> putTools(allowed.withObject("allowed_tools"), tools));
        return allowed;
    }

    private static ObjectNode responseFormat(JsonFields format) {
        return format.string("type").equals(Optional.of("json_schema"))
                ? function(format, "json_schema")
                : format.toJson();
    }

    /** Whether the answer goes on with the last item. */
    private static boolean goesOn(JsonFields fields) {
        JsonNode last = fields.value("input")
                .filter(JsonNode::isArray)
                .map(items -> items.path(items.size() - 1))
                .orElseGet(NODES::missingNode);
        return List.of("message", "reasoning").contains(last.path("type").asString("message"))
                && List.of("in_progress", "incomplete")
                        .contains(last.path("status").asString(""));
    }

    private static ArrayNode messages(JsonFields fields) {
        ArrayNode messages = NODES.arrayNode();
        fields.string("instructions")
                .filter(text -> !text.isEmpty())
                .ifPresent(text -> messages.addObject().put("role", "system").put("content", text));
        JsonNode input = fields.value("input")
                .orElseThrow(() -> ApiException.badField("input", "is missing, must be a string or an array of items"));
        if (input.isString()) {
            messages.addObject().put("role", "user").set("content", input);
            return messages;
        }
        if (input.isEmpty()) {
            throw ApiException.badField("input", "must be a string or an array of at least one item");
        }
        fields.objects("input").orElseThrow().forEach(item -> add(item, messages));
        return messages;
    }

    /** An assistant's reasoning, text and calls are one message, each at most once. */
    private static void add(JsonFields item, ArrayNode messages) {
        String type = item.string("type").orElse("message");
        switch (type) {
            case "message" -> {
                String role = item.string("role")
                        .orElseThrow(() ->
                                ApiException.badField(item.field("role"), "is missing, must be a string such as user"));
                JsonNode content = item.value("content")
                        .orElseThrow(() -> ApiException.badField(
                                item.field("content"), "is missing, must be a string or an array of parts"));
                (role.equals("assistant")
                                ? assistant(messages, "content")
                                : messages.addObject().put("role", role))
                        .set("content", content);
            }
            case "reasoning" -> assistant(messages, "reasoning").put("reasoning", reasoning(item));
            case "function_call" -> {
                ObjectNode call = assistant(messages, "")
                        .withArrayProperty("tool_calls")
                        .addObject()
                        .put("id", required(item, "call_id"))
                        .put("type", "function");
                call.putObject("function")
                        .put("name", required(item, "name"))
                        .put("arguments", required(item, "arguments"));
            }
            case "function_call_output" ->
                messages.addObject()
                        .put("role", "tool")
                        .put("tool_call_id", required(item, "call_id"))
                        .set(
                                "content",
                                item.value("output")
                                        .orElseThrow(() -> ApiException.badField(
                                                item.field("output"), "is missing, must be a string or an array")));
            default ->
                throw ConfigException.unsupported(
                        item.field("type"), type, "message, reasoning, function_call, function_call_output");
        }
    }

    /** The last message, if it is an assistant's without that field, else a new one. */
    private static ObjectNode assistant(ArrayNode messages, String without) {
        return messages.path(messages.size() - 1) instanceof ObjectNode last
                        && last.path("role").asString("").equals("assistant")
                        && !last.has(without)
                ? last
                : messages.addObject().put("role", "assistant");
    }

    private static String reasoning(JsonFields item) {
        if (item.value("encrypted_content").filter(RequestFields::isSet).isPresent()) {
            throw ApiException.badField(
                    item.field("encrypted_content"), "is not supported by this server, which encrypts nothing");
        }
        return item.objects("content")
                .filter(parts -> !parts.isEmpty())
                .or(() -> item.objects("summary").filter(parts -> !parts.isEmpty()))
                .map(parts -> required(parts.getFirst(), "text"))
                .orElse("");
    }

    private static String required(JsonFields item, String name) {
        return item.string(name)
                .orElseThrow(() -> ApiException.badField(item.field(name), "is missing, must be a string"));
    }
}
