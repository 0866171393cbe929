package baton.engine.text;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import tools.jackson.core.JacksonException;
import tools.jackson.core.json.JsonReadFeature;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * Reads OpenAI's message objects as vLLM 0.32 does before it renders them: a message of the template has {@code role} and {@code content}, of an
 * assistant {@code tool_calls}, {@code reasoning} and its copy {@code reasoning_content}, of a tool {@code tool_call_id}, and {@code name} and
 * {@code task} where they are strings. Other fields do not reach the template, but for {@code thinking} of templates that read it.
 */
final class Conversation {
    private static final String ASSISTANT = "assistant";
    private static final String TOOL = "tool";
    private static final String SYSTEM = "system";
    private static final String DEVELOPER = "developer";
    private static final String CONTENT = "content";
    private static final String ROLE = "role";
    private static final String TYPE = "type";
    private static final String TEXT = "text";
    private static final String REFUSAL = "refusal";
    private static final String TOOL_REFERENCE = "tool_reference";
    private static final String TOOL_CALLS = "tool_calls";
    private static final String CALL_ID = "tool_call_id";
    private static final String ARGUMENTS = "arguments";
    private static final String TOOLS = "tools";
    private static final String THINKING = "thinking";

    /** Roles that may have null as content. */
    private static final Set<String> WITHOUT_CONTENT = Set.of(ASSISTANT, "function");

    /** Roles that require a text in each text part. */
    private static final Set<String> WITH_TEXTS = Set.of(SYSTEM, DEVELOPER, "user", ASSISTANT);

    /** Fields of some type of part; others go with a text to the template. */
    private static final Set<String> PART_FIELDS = Set.of(
            "audio_embeds",
            "audio_url",
            "closed",
            "data",
            "file",
            "image_embeds",
            "image_pil",
            "image_url",
            "input_audio",
            "name",
            "prompt_cache_breakpoint",
            REFUSAL,
            TEXT,
            THINKING,
            TYPE,
            "uuid",
            "video_embeds",
            "video_url");

    /** A line of Claude Code that differs in each request. */
    private static final String BILLING_HEADER = "x-anthropic-billing-header";

    /** Python's parser reads {@code NaN} and {@code Infinity} as well. */
    private static final JsonMapper PYTHON_JSON = JsonMapper.builder()
            .enable(JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS)
            .build();

    private Conversation() {}

    /**
     * The messages that a template gets.
     *
     * @param inParts whether the template reads contents as arrays of parts
     * @param knowsDeveloper whether the template knows the role {@code developer}; else it becomes {@code system}, and all system messages become
     *     one, which is the first
     * @param readsThinking whether the template reads an assistant's {@code thinking}, as that of gpt-oss does, which vLLM does not render
     * @throws ConfigException naming the malformed field
     */
    static List<ObjectNode> read(
            List<JsonNode> messages, boolean inParts, boolean knowsDeveloper, boolean readsThinking) {
        List<ObjectNode> read = new ArrayList<>(messages.size());
        boolean hasDeveloper = false;
        for (JsonNode message : messages) {
            JsonFields fields = fields("messages[" + read.size() + "]", message);
            ObjectNode each = message(fields, inParts);
            if (readsThinking && has(each, ROLE, ASSISTANT)) {
                thinking(fields, each);
            }
            hasDeveloper |= has(each, ROLE, DEVELOPER);
            read.add(each);
        }
        return hasDeveloper && !knowsDeveloper ? withoutDeveloper(read) : read;
    }

    /** The text of a message's content, a line for each part. */
    static String text(JsonNode message) {
        JsonFields fields = fields("messages", message);
        return texts(parts(fields, fields.string(ROLE).orElse("")));
    }

    private static JsonFields fields(String name, JsonNode node) {
        if (node instanceof ObjectNode object) {
            return JsonFields.of(name, object);
        }
        throw new ConfigException(name, "must be an object, is " + JsonFields.shown(node));
    }

    private static ObjectNode message(JsonFields fields, boolean inParts) {
        String role = fields.string(ROLE)
                .orElseThrow(
                        () -> new ConfigException(fields.field(ROLE), "is missing, must be a string such as user"));
        ObjectNode message = JsonNodeFactory.instance.objectNode().put(ROLE, role);
        message.set(CONTENT, content(role, parts(fields, role), inParts));
        switch (role) {
            case ASSISTANT -> {
                calls(fields).ifPresent(calls -> message.set(TOOL_CALLS, calls));
                fields.string("reasoning")
                        .or(() -> fields.string("reasoning_content"))
                        .ifPresent(
                                reasoning -> message.put("reasoning", reasoning).put("reasoning_content", reasoning));
            }
            case TOOL -> {
                if (fields.names().contains(CALL_ID)) {
                    fields.string(CALL_ID)
                            .ifPresentOrElse(id -> message.put(CALL_ID, id), () -> message.putNull(CALL_ID));
                }
            }
            default -> {}
        }
        fields.string("name").ifPresent(name -> message.put("name", name));
        fields.value("task").filter(JsonNode::isString).ifPresent(task -> message.set("task", task));
        if (role.equals(DEVELOPER)) {
            message.set(
                    TOOLS,
                    fields.value(TOOLS).map(Conversation::developerTools).orElse(JsonNodeFactory.instance.nullNode()));
        }
        return message;
    }

    /** The reasoning is there by this name too. A message with tool calls has either content or thinking in templates. */
    private static void thinking(JsonFields fields, ObjectNode message) {
        boolean hasPlace =
                !message.has(TOOL_CALLS) || message.path(CONTENT).asString("").isEmpty();
        fields.string(THINKING)
                .or(() -> message.path("reasoning").asStringOpt())
                .filter(_ -> hasPlace)
                .ifPresent(thinking -> message.put(THINKING, thinking));
    }

    /** Text parts and references to tools. */
    private static List<ObjectNode> parts(JsonFields message, String role) {
        Optional<JsonNode> content = message.value(CONTENT);
        if (content.isEmpty()) {
            if (message.names().contains(CONTENT) && !WITHOUT_CONTENT.contains(role)) {
                throw new ConfigException(
                        message.field(CONTENT), "is null, must be a string or an array of parts in this role");
            }
            return List.of();
        }
        JsonNode whole = content.get();
        if (!whole.isString() && !whole.isArray()) {
            throw new ConfigException(
                    message.field(CONTENT), "must be a string or an array of parts, is " + JsonFields.shown(whole));
        }
        List<ObjectNode> parts = new ArrayList<>();
        int index = 0;
        for (JsonNode element : whole.isString() ? List.of(whole) : whole.values()) {
            part(message.field(CONTENT + "[" + index++ + "]"), element, role)
                    .flatMap(part -> role.equals(SYSTEM) ? withoutBillingHeader(part, element) : Optional.of(part))
                    .ifPresent(parts::add);
        }
        return parts;
    }

    /** Empty for a part that counts as absent. */
    private static Optional<ObjectNode> part(String name, JsonNode element, String role) {
        if (element.isString()) {
            return Optional.of(textPart(element.asString()));
        }
        if (!(element instanceof ObjectNode object)) {
            throw new ConfigException(name, "must be an object or a string, is " + JsonFields.shown(element));
        }
        JsonFields part = JsonFields.of(name, object);
        String type =
                part.string(TYPE).orElseThrow(() -> new ConfigException(part.field(TYPE), "is missing, must be text"));
        String field = switch (type) {
            case TEXT, "input_text", "output_text" -> TEXT;
            case REFUSAL, THINKING -> type;
            case TOOL_REFERENCE -> "name";
            default ->
                throw ConfigException.unsupported(
                        part.field(TYPE), type, "text, input_text, output_text, refusal, thinking, tool_reference");
        };
        Optional<String> text = part.string(field);
        if (type.equals(TOOL_REFERENCE)) {
            ObjectNode reference = JsonNodeFactory.instance.objectNode().put(TYPE, type);
            return Optional.of(
                    text.map(tool -> reference.put("name", tool)).orElseGet(() -> reference.putNull("name")));
        }
        if (text.isEmpty() && !type.equals(REFUSAL) && !(type.equals(TEXT) && !WITH_TEXTS.contains(role))) {
            throw new ConfigException(part.field(field), "is missing, must be a string");
        }
        return text.map(given -> {
            ObjectNode read = textPart(given);
            object.properties().stream()
                    .filter(entry -> !PART_FIELDS.contains(entry.getKey()))
                    .forEach(entry -> read.set(entry.getKey(), entry.getValue()));
            return read;
        });
    }

    private static ObjectNode textPart(String text) {
        return JsonNodeFactory.instance.objectNode().put(TYPE, TEXT).put(TEXT, text);
    }

    private static Optional<ObjectNode> withoutBillingHeader(ObjectNode part, JsonNode given) {
        String text = part.path(TEXT).asString("");
        if (!text.startsWith(BILLING_HEADER) || !(given.isString() || has(given, TYPE, TEXT))) {
            return Optional.of(part);
        }
        int end = text.indexOf('\n') + 1;
        return end == 0 || end == text.length() ? Optional.empty() : Optional.of(part.put(TEXT, text.substring(end)));
    }

    private static JsonNode content(String role, List<ObjectNode> parts, boolean inParts) {
        boolean isText = parts.stream().allMatch(part -> has(part, TYPE, TEXT));
        if (inParts && !(role.equals(TOOL) && isText)) {
            return JsonNodeFactory.instance.arrayNode().addAll(parts);
        }
        // Empty lines of a tool's answer are kept where contents are in parts, and only there.
        return JsonNodeFactory.instance.stringNode(
                inParts ? parts.stream().map(Conversation::textOf).collect(Collectors.joining("\n")) : texts(parts));
    }

    private static String texts(List<ObjectNode> parts) {
        return parts.stream()
                .map(Conversation::textOf)
                .filter(text -> !text.isEmpty())
                .collect(Collectors.joining("\n"));
    }

    private static String textOf(JsonNode part) {
        return part.path(has(part, TYPE, TOOL_REFERENCE) ? "name" : TEXT).asString("");
    }

    /** Empty if there are none. */
    private static Optional<ArrayNode> calls(JsonFields message) {
        ArrayNode calls = JsonNodeFactory.instance.arrayNode();
        for (JsonFields call : message.objects(TOOL_CALLS).orElse(List.of())) {
            String type = call.string(TYPE).orElse("function");
            if (!type.equals("function")) {
                throw ConfigException.unsupported(call.field(TYPE), type, "function");
            }
            JsonFields function = call.object("function")
                    .orElseThrow(() -> new ConfigException(call.field("function"), "is missing, must be an object"));
            ObjectNode read = call.toJson();
            read.set(
                    "function",
                    inOrder(
                            function.toJson()
                                    .set(
                                            ARGUMENTS,
                                            function.value(ARGUMENTS)
                                                    .map(Conversation::arguments)
                                                    .orElseGet(JsonNodeFactory.instance::objectNode)),
                            ARGUMENTS,
                            "name"));
            calls.add(inOrder(read, "id", "function", TYPE));
        }
        return Optional.of(calls).filter(each -> !each.isEmpty());
    }

    /** An object, or one written as a string. Anything else is an empty object: a broken call in the history does not end the conversation. */
    private static ObjectNode arguments(JsonNode given) {
        JsonNode read = given;
        if (given.isString()) {
            try {
                read = PYTHON_JSON.readTree(given.asString());
            } catch (JacksonException e) {
                return JsonNodeFactory.instance.objectNode();
            }
        }
        return read instanceof ObjectNode object ? object : JsonNodeFactory.instance.objectNode();
    }

    /** The tools in the order of OpenAI's classes if all fit them, else unchanged. */
    private static JsonNode developerTools(JsonNode tools) {
        ArrayNode read = JsonNodeFactory.instance.arrayNode();
        for (JsonNode tool : tools) {
            JsonNode function = tool.path("function");
            if (!has(tool, TYPE, "function") || !isFunction(function)) {
                return tools;
            }
            ObjectNode copy = ((ObjectNode) tool).deepCopy();
            copy.set("function", inOrder((ObjectNode) function, "name", "description", "parameters", "strict"));
            read.add(inOrder(copy, "function", TYPE));
        }
        return read;
    }

    private static boolean isFunction(JsonNode function) {
        JsonNode strict = function.path("strict");
        return function.path("name").isString()
                && (!function.has("description") || function.path("description").isString())
                && (!function.has("parameters") || function.path("parameters").isObject())
                && (strict.isMissingNode() || strict.isNull() || strict.isBoolean());
    }

    /** The same with these fields, where it has them, before the others. */
    private static ObjectNode inOrder(ObjectNode object, String... first) {
        ObjectNode ordered = JsonNodeFactory.instance.objectNode();
        for (String name : first) {
            if (object.has(name)) {
                ordered.set(name, object.get(name));
            }
        }
        object.properties().forEach(entry -> ordered.putIfAbsent(entry.getKey(), entry.getValue()));
        return ordered;
    }

    private static List<ObjectNode> withoutDeveloper(List<ObjectNode> messages) {
        List<ObjectNode> others = new ArrayList<>();
        List<String> systems = new ArrayList<>();
        boolean merges = false;
        for (ObjectNode message : messages) {
            if (has(message, ROLE, DEVELOPER)) {
                message.put(ROLE, SYSTEM).remove(TOOLS);
            }
            if (has(message, ROLE, SYSTEM)) {
                merges |= !systems.isEmpty() || !others.isEmpty();
                systems.add(contentText(message.path(CONTENT)));
            } else {
                others.add(message);
            }
        }
        if (!merges) {
            return messages;
        }
        String merged = systems.stream().filter(text -> !text.isEmpty()).collect(Collectors.joining("\n\n"));
        others.addFirst(JsonNodeFactory.instance.objectNode().put(ROLE, SYSTEM).put(CONTENT, merged));
        return others;
    }

    private static String contentText(JsonNode content) {
        return content.isArray()
                ? content.valueStream()
                        .filter(part -> part.has(TEXT))
                        .map(part -> part.path(TEXT).asString(""))
                        .collect(Collectors.joining("\n"))
                : content.asString("");
    }

    private static boolean has(JsonNode object, String field, String value) {
        return object.path(field).asString("").equals(value);
    }
}
