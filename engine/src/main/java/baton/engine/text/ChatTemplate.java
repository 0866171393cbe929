package baton.engine.text;

import baton.engine.gguf.GgufModel;
import baton.jinja.JinjaException;
import baton.jinja.Template;
import baton.kv.ConfigException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Clock;
import java.time.ZoneId;
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

    /** The most bytes of memory that rendering a template of {@link #with} takes, beside its variables. */
    public static final long MAX_REQUESTED_BYTES = 2 * 16 * MAX_REQUESTED_STEPS;

    /** Marks the end of the message that is continued, with a blank that shows whether the template trims; transformers uses the same. */
    private static final String FINAL_MESSAGE_TAG = "CONTINUE_FINAL_MESSAGE_TAG ";

    private final Path modelDir;
    private final Map<String, Compiled> templates;
    private final Map<String, JsonNode> specialTokens;
    private final Clock clock;
    private final long maxSteps;

    private record Compiled(Template template, String source, boolean readsParts) {
        static Compiled of(String source) {
            Template template = Template.compile(source);
            return new Compiled(template, source, template.readsContentParts());
        }

        boolean knowsDeveloper() {
            return source.contains("\"developer\"") || source.contains("'developer'");
        }

        boolean readsThinking() {
            return source.contains("message.thinking");
        }
    }

    private ChatTemplate(
            Path modelDir,
            Map<String, Compiled> templates,
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
     * {@code tokenizer_config.json} (a string, or a list of named ones), else {@code chat_template.json}; or takes that of a GGUF file. A
     * model without one loads, and every rendering fails.
     *
     * @throws ConfigException naming file and line, if a file cannot be read or a template not compiled
     */
    public static ChatTemplate load(Path modelDir) {
        return load(modelDir, Clock.system(ZoneId.systemDefault()));
    }

    /** Loads as {@link #load(Path)} does, with the clock that {@code strftime_now} reads. */
    public static ChatTemplate load(Path modelDir, Clock clock) {
        Path configFile = modelDir.resolve("tokenizer_config.json");
        JsonNode config = GgufModel.isFile(modelDir) ? ofGguf(modelDir) : readJson(configFile);
        Path file = modelDir.resolve("chat_template.jinja");
        Map<String, Compiled> templates = new LinkedHashMap<>();
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
                    modelDir, Map.of("default", Compiled.of(source)), specialTokens, clock, MAX_REQUESTED_STEPS);
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
     * The prompt for a conversation, read as vLLM 0.32 reads it: contents are strings, or parts for a template that loops over them; {@code
     * arguments} of tool calls are objects; the role {@code developer} is {@code system} unless the template mentions it. With tools, a template
     * named {@code tool_use} is preferred.
     *
     * @throws ChatTemplateException if there is no template or it does not render this conversation
     * @throws ConfigException naming the malformed field of a message
     */
    public String render(ChatRequest request) {
        return render(request, () -> {});
    }

    /** Renders as {@link #render(ChatRequest)} does; {@code watch} is run now and then and may end the rendering by an exception. */
    public String render(ChatRequest request, Runnable watch) {
        Compiled chosen = choose(request.tools().isPresent());
        List<ObjectNode> messages = Conversation.read(
                request.messages(), chosen.readsParts(), chosen.knowsDeveloper(), chosen.readsThinking());
        Optional<String> continued =
                request.continueFinalMessage() ? Optional.of(tagLast(messages, chosen)) : Optional.empty();
        Map<String, JsonNode> variables = new HashMap<>(specialTokens);
        variables.put("documents", JsonNodeFactory.instance.nullNode());
        variables.putAll(request.variables());
        variables.put("messages", array(messages));
        variables.put(
                "tools",
                request.tools().<JsonNode>map(ChatTemplate::array).orElse(JsonNodeFactory.instance.nullNode()));
        variables.put("add_generation_prompt", BooleanNode.valueOf(request.addGenerationPrompt()));
        String prompt;
        try {
            prompt = chosen.template().render(variables, clock, maxSteps, watch);
        } catch (JinjaException e) {
            throw new ChatTemplateException("chat template, " + e.getMessage(), e);
        }
        return continued.map(message -> cutAtTag(prompt, message)).orElse(prompt);
    }

    private Compiled choose(boolean withTools) {
        Compiled toolUse = templates.get("tool_use");
        if (withTools && toolUse != null) {
            return toolUse;
        }
        Compiled usual = templates.get("default");
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

    private static ArrayNode array(List<? extends JsonNode> nodes) {
        return JsonNodeFactory.instance.arrayNode().addAll(nodes);
    }

    /** Marks the end of the last message's text, and returns that text. */
    private static String tagLast(List<ObjectNode> messages, Compiled template) {
        ObjectNode holder = messages.isEmpty() ? JsonNodeFactory.instance.objectNode() : messages.getLast();
        String field = "content";
        JsonNode content = holder.path(field);
        for (int i = content.size() - 1; i >= 0; i--) {
            if (content.get(i) instanceof ObjectNode part && part.has("text")) {
                holder = part;
                field = "text";
                break;
            }
        }
        JsonNode text = holder.path(field);
        if (!text.isString()) {
            throw new ChatTemplateException("continue_final_message: the last message has no text to continue");
        }
        if (!template.source().contains("content")) {
            throw new ChatTemplateException(
                    "continue_final_message: the chat template does not read the field content");
        }
        holder.put(field, text.asString() + FINAL_MESSAGE_TAG);
        return text.asString();
    }

    private static String cutAtTag(String prompt, String message) {
        int at = prompt.lastIndexOf(FINAL_MESSAGE_TAG.strip());
        if (at < 0 || !prompt.contains(stripRight(message).stripLeading())) {
            throw new ChatTemplateException(
                    "continue_final_message: the last message is not in the rendered prompt as it was given");
        }
        String before = prompt.substring(0, at);
        return prompt.startsWith(FINAL_MESSAGE_TAG, at) ? before : stripRight(before);
    }

    /** Without the white space at its end, in Python's meaning. */
    private static String stripRight(String text) {
        int end = text.length();
        while (end > 0 && isSpace(text.charAt(end - 1))) {
            end--;
        }
        return text.substring(0, end);
    }

    private static boolean isSpace(char c) {
        return Character.isWhitespace(c) || Character.isSpaceChar(c) || c == 0x85;
    }

    private static void addTemplates(Path file, JsonNode node, Map<String, Compiled> templates) {
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

    private static Compiled compile(Path file, String source) {
        try {
            return Compiled.of(source);
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

    private static JsonNode ofGguf(Path file) {
        try {
            return GgufTokenizer.config(file);
        } catch (IOException e) {
            throw new ConfigException(file.toString(), "cannot be read: " + e, e);
        }
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
