package baton.engine.text;

import baton.jinja.JinjaException;
import baton.jinja.Template;
import baton.kv.ConfigException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Clock;
import java.time.ZoneId;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.BooleanNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * A model's chat template: turns a conversation into the prompt the model was trained on, character for character as
 * {@code apply_chat_template} of Hugging Face's transformers. Immutable; may be used by many threads.
 *
 * <p>The prompt holds its special tokens written out, so it is to be encoded without adding any.
 */
public final class ChatTemplate {
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final List<String> SPECIAL_TOKENS =
            List.of("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token");

    /** Models' own have some ten thousand at most. */
    private static final int MAX_REQUESTED_CHARACTERS = 256 << 10;

    private static final long MAX_REQUESTED_STEPS = 2_000_000;

    /** What rendering a template of {@link #with} takes of memory at most, besides what it is given; bytes. */
    public static final long MAX_REQUESTED_BYTES = 2 * 16 * MAX_REQUESTED_STEPS;

    /** Text that no template holds. */
    private static final String PROBE = "content-part-probe";

    private final Path modelDir;
    private final Map<String, Template> templates;
    private final Map<String, JsonNode> specialTokens;
    private final Clock clock;
    private final long maxSteps;

    private ChatTemplate(
            Path modelDir,
            Map<String, Template> templates,
            Map<String, JsonNode> specialTokens,
            Clock clock,
            long maxSteps) {
        this.modelDir = modelDir;
        this.templates = templates;
        this.specialTokens = specialTokens;
        this.clock = clock;
        this.maxSteps = maxSteps;
    }

    /**
     * Finds the template of a model directory: {@code chat_template.jinja}, else {@code chat_template} of
     * {@code tokenizer_config.json} (a string, or a list of named ones), else {@code chat_template.json}. A directory without
     * one loads, and every rendering fails.
     *
     * @throws ConfigException naming file and line, if a file cannot be read or a template not compiled
     */
    public static ChatTemplate load(Path modelDir) {
        return load(modelDir, Clock.system(ZoneId.systemDefault()));
    }

    /** As {@link #load(Path)}, with the clock that {@code strftime_now} reads. */
    public static ChatTemplate load(Path modelDir, Clock clock) {
        Path configFile = modelDir.resolve("tokenizer_config.json");
        JsonNode config = readJson(configFile);
        Path file = modelDir.resolve("chat_template.jinja");
        Map<String, Template> templates = new LinkedHashMap<>();
        Optional<String> source = read(file);
        if (source.isPresent()) {
            templates.put("default", compile(file, source.get()));
        } else if (config.hasNonNull("chat_template")) {
            addTemplates(configFile, config.path("chat_template"), templates);
        } else {
            Path jsonFile = modelDir.resolve("chat_template.json");
            addTemplates(jsonFile, readJson(jsonFile).path("chat_template"), templates);
        }
        return new ChatTemplate(modelDir, templates, specialTokens(config), clock, Template.MAX_STEPS);
    }

    /**
     * The same model with a template that came with a request: rendering it may take {@value #MAX_REQUESTED_STEPS} steps.
     *
     * @throws ChatTemplateException if {@code source} is longer than {@value #MAX_REQUESTED_CHARACTERS} characters or cannot be compiled
     */
    public ChatTemplate with(String source) {
        if (source.length() > MAX_REQUESTED_CHARACTERS) {
            throw new ChatTemplateException("chat_template: has " + source.length() + " characters, must have at most "
                    + MAX_REQUESTED_CHARACTERS);
        }
        try {
            return new ChatTemplate(
                    modelDir, Map.of("default", Template.compile(source)), specialTokens, clock, MAX_REQUESTED_STEPS);
        } catch (JinjaException e) {
            throw new ChatTemplateException("chat_template, " + e.getMessage(), e);
        }
    }

    /** A special token's text, by its name in {@code tokenizer_config.json}. */
    public Optional<String> specialToken(String name) {
        return Optional.ofNullable(specialTokens.get(name)).map(JsonNode::asString);
    }

    /** Whether there is a template at all. */
    public boolean isPresent() {
        return !templates.isEmpty();
    }

    /**
     * The prompt for a conversation. As in vLLM, the {@code arguments} of a message's tool calls are given to the template as an
     * object when they come as JSON text, and a {@code content} of text parts as one string, a line each, to a template that does
     * not read parts. With tools, a template named {@code tool_use} is preferred.
     *
     * @throws ChatTemplateException if there is no template or it does not render this conversation
     */
    public String render(ChatRequest request) {
        return render(request, () -> {});
    }

    /** As {@link #render(ChatRequest)}; {@code watch} is run now and then and may end it by an exception of its own. */
    public String render(ChatRequest request, Runnable watch) {
        Template template = choose(request.tools().isPresent());
        boolean hasParts = request.messages().stream()
                .anyMatch(message -> message.path("content").isArray());
        Map<String, JsonNode> variables = new HashMap<>(specialTokens);
        variables.put("documents", JsonNodeFactory.instance.nullNode());
        variables.put("messages", messages(request.messages(), !hasParts || readsParts(template, watch)));
        variables.put(
                "tools",
                request.tools().<JsonNode>map(ChatTemplate::array).orElse(JsonNodeFactory.instance.nullNode()));
        variables.put("add_generation_prompt", BooleanNode.valueOf(request.addGenerationPrompt()));
        variables.putAll(request.variables());
        String prompt;
        try {
            prompt = template.render(variables, clock, maxSteps, watch);
        } catch (JinjaException e) {
            throw new ChatTemplateException("chat template, " + e.getMessage(), e);
        }
        return request.continueFinalMessage() ? cutAfterFinalMessage(prompt, request.messages()) : prompt;
    }

    private Template choose(boolean withTools) {
        Template toolUse = templates.get("tool_use");
        if (withTools && toolUse != null) {
            return toolUse;
        }
        Template usual = templates.get("default");
        if (usual != null) {
            return usual;
        }
        throw new ChatTemplateException(
                templates.isEmpty()
                        ? "the model has no chat template: neither chat_template.jinja nor chat_template.json is in "
                                + modelDir
                                + ", nor chat_template in its tokenizer_config.json; complete a plain prompt instead"
                        : "the model has no chat template named 'default', only " + templates.keySet());
    }

    private static ArrayNode array(List<JsonNode> nodes) {
        return JsonNodeFactory.instance.arrayNode().addAll(nodes);
    }

    /** Whether a template shows the text of a content part, and not the part as Python or JSON prints it. */
    private boolean readsParts(Template template, Runnable watch) {
        JsonNode probe =
                JSON.readTree("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"" + PROBE + "\"}]}]");
        Map<String, JsonNode> variables = new HashMap<>(specialTokens);
        variables.put("messages", probe);
        variables.put("tools", JsonNodeFactory.instance.nullNode());
        variables.put("add_generation_prompt", BooleanNode.FALSE);
        try {
            String shown = template.render(variables, clock, maxSteps, watch);
            return shown.contains(PROBE) && !shown.contains("'" + PROBE + "'") && !shown.contains('"' + PROBE + '"');
        } catch (JinjaException e) {
            return false;
        }
    }

    /** The lines of a content made of text parts only; anything else is left to the template. */
    private static Optional<String> joinedParts(JsonNode content) {
        List<String> texts = new ArrayList<>();
        for (JsonNode part : content) {
            if (!part.path("type").asString("").equals("text")
                    || !part.path("text").isString()) {
                return Optional.empty();
            }
            texts.add(part.path("text").asString());
        }
        return content.isArray() ? Optional.of(String.join("\n", texts)) : Optional.empty();
    }

    private static ArrayNode messages(List<JsonNode> messages, boolean readsParts) {
        List<JsonNode> prepared = new ArrayList<>();
        for (JsonNode message : messages) {
            JsonNode copy = message.deepCopy();
            if (!readsParts && copy instanceof ObjectNode object) {
                joinedParts(object.path("content")).ifPresent(text -> object.put("content", text));
            }
            for (JsonNode call : copy.path("tool_calls")) {
                if (call.path("function") instanceof ObjectNode function
                        && function.path("arguments").isString()) {
                    String text = function.path("arguments").asString();
                    try {
                        function.set(
                                "arguments",
                                text.isBlank() ? JsonNodeFactory.instance.objectNode() : JSON.readTree(text));
                    } catch (JacksonException e) {
                        throw new ChatTemplateException(
                                "messages[" + prepared.size() + "].tool_calls: function.arguments is not valid JSON: "
                                        + e.getOriginalMessage(),
                                e);
                    }
                }
            }
            prepared.add(copy);
        }
        return array(prepared);
    }

    /** Drops what the template put behind the last message, by transformers' rules. */
    private static String cutAfterFinalMessage(String prompt, List<JsonNode> messages) {
        JsonNode content = messages.isEmpty()
                ? JsonNodeFactory.instance.nullNode()
                : messages.getLast().path("content");
        for (int i = content.isArray() ? content.size() - 1 : -1; i >= 0; i--) {
            if (content.path(i).has("text")) {
                content = content.path(i).path("text");
                break;
            }
        }
        if (!content.isString()) {
            throw new ChatTemplateException("continue_final_message: the last message has no text to continue");
        }
        String message = content.asString();
        int at = prompt.lastIndexOf(message.strip());
        if (at < 0) {
            throw new ChatTemplateException(
                    "continue_final_message: the last message is not in the rendered prompt as it was given");
        }
        String untrimmed = message.stripLeading();
        int end = at + (prompt.startsWith(untrimmed, at) ? untrimmed : message.strip()).length();
        return prompt.substring(0, end);
    }

    private static void addTemplates(Path file, JsonNode node, Map<String, Template> templates) {
        if (node.isString()) {
            templates.put("default", compile(file, node.asString()));
        } else if (node.isArray()) {
            for (JsonNode named : node) {
                templates.put(
                        named.path("name").asString(""),
                        compile(file, named.path("template").asString("")));
            }
        } else if (!node.isMissingNode() && !node.isNull()) {
            throw new ConfigException(
                    file + ": chat_template",
                    "must be a string or an array of named templates, is " + node.getNodeType());
        }
    }

    private static Template compile(Path file, String source) {
        try {
            return Template.compile(source);
        } catch (JinjaException e) {
            throw new ConfigException(file.toString(), "chat template, " + e.getMessage(), e);
        }
    }

    private static Map<String, JsonNode> specialTokens(JsonNode config) {
        Map<String, JsonNode> tokens = new HashMap<>();
        for (String name : SPECIAL_TOKENS) {
            JsonNode token = config.path(name);
            JsonNode text = token.isObject() ? token.path("content") : token;
            if (text.isString()) {
                tokens.put(name, text);
            }
        }
        return tokens;
    }

    private static JsonNode readJson(Path file) {
        try {
            return read(file).map(JSON::readTree).orElse(JsonNodeFactory.instance.objectNode());
        } catch (JacksonException e) {
            throw new ConfigException(file.toString(), "not valid JSON: " + e.getOriginalMessage(), e);
        }
    }

    private static Optional<String> read(Path file) {
        try {
            return Files.exists(file) ? Optional.of(Files.readString(file)) : Optional.empty();
        } catch (IOException e) {
            throw new ConfigException(file.toString(), "cannot be read: " + e, e);
        }
    }
}
