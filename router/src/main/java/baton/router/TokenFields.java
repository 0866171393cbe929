package baton.router;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import baton.router.body.PromptField;
import baton.router.upstream.ConnectorAddress;
import io.vertx.core.MultiMap;
import io.vertx.core.buffer.Buffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * The position of a stream of a vLLM instance, which puts token ids into its events ({@code return_token_ids}). Another instance gets the same request with the
 * tokens so far behind the prompt. The client's events have no token ids, and the id and time of the first instance's answer. Tokens without text, as those of
 * a part of a character, are generated again.
 */
final class TokenFields implements StreamPosition {
    private static final String ASK = "return_token_ids";
    private static final String IDS = "token_ids";
    private static final String PROMPT_IDS = "prompt_token_ids";
    private static final byte[] DATA = "data: {".getBytes(StandardCharsets.US_ASCII);

    /** The tokens of a completion without {@code max_tokens}. */
    private static final int COMPLETION_TOKENS = 16;

    /** Fields with an effect that depends on where the output begins. */
    private static final List<String> UNSUPPORTED = List.of(
            ASK,
            ConnectorAddress.FIELD,
            "echo",
            "logprobs",
            "prompt_logprobs",
            "stop",
            "bad_words",
            "presence_penalty",
            "frequency_penalty",
            "repetition_detection",
            "thinking_token_budget",
            "use_beam_search",
            "truncate_prompt_tokens",
            "response_format",
            "structured_outputs",
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "tools");

    /** Values without an effect. */
    private static final Set<String> NO_EFFECT = Set.of("false", "0", "0.0", "[]", "\"\"");

    private final boolean isChat;
    private final boolean isGreedy;
    private final Optional<String> unsupported;

    /** Ids of the prompt, and of the tokens of which the client has the text. */
    private final StringBuilder ids = new StringBuilder();
    /** Ids of the tokens behind these. */
    private final StringBuilder pending = new StringBuilder();

    private int promptTokens;
    private int tokens;
    /** Tokens that former instances have generated. */
    private int before;

    private boolean isContinued;
    /** Whether the continuing instance has confirmed its prompt. */
    private boolean isConfirmed;

    private Optional<String> refusal = Optional.empty();
    private Optional<byte[]> id = Optional.empty();
    private Optional<byte[]> created = Optional.empty();
    private Optional<String> lost = Optional.empty();

    TokenFields(JsonObjectText body) {
        isChat = !body.hasNonNull(PromptField.PROMPT);
        isGreedy = body.value("temperature")
                .map(TokenFields::text)
                .filter(NO_EFFECT::contains)
                .isPresent();
        unsupported = UNSUPPORTED.stream()
                .filter(name -> body.value(name)
                        .filter(value -> !NO_EFFECT.contains(text(value)))
                        .isPresent())
                .findFirst()
                .or(() -> Optional.of("n")
                        .filter(n -> body.value(n)
                                .filter(value -> !text(value).equals("1"))
                                .isPresent()))
                .or(() -> PromptField.count(body) == 1 ? Optional.empty() : Optional.of("several prompts"))
                .map(field -> "a vLLM instance cannot continue a request with " + field);
    }

    private static String text(byte[] json) {
        return new String(json, StandardCharsets.UTF_8);
    }

    @Override
    public JsonObjectText asking(JsonObjectText body) {
        return unsupported.isPresent() ? body : body.edit().set(ASK, "true").object();
    }

    @Override
    public void begin(MultiMap headers) {
        ids.setLength(0);
        pending.setLength(0);
        tokens = 0;
        lost = Optional.empty();
    }

    @Override
    public boolean resume(MultiMap headers) {
        isContinued = true;
        isConfirmed = false;
        refusal = Optional.empty();
        before = tokens;
        pending.setLength(0);
        return true;
    }

    @Override
    public boolean isKnown() {
        return unsupported.isEmpty();
    }

    @Override
    public Optional<String> whyNot() {
        return unsupported
                .or(() -> lost)
                .or(() -> ids.isEmpty() ? Optional.of("the instance sends no token ids") : Optional.empty());
    }

    @Override
    public long tokens() {
        return tokens;
    }

    /** The parameters of a chat's hand-over would take the place of those with its tokens. */
    @Override
    public boolean canHandOver() {
        return !isChat;
    }

    @Override
    public String difference() {
        return isGreedy ? "" : ", the rest is drawn anew";
    }

    @Override
    public void accept(Buffer event, List<Buffer> ready) {
        byte[] bytes = event.getBytes();
        if (!Arrays.equals(bytes, 0, Math.min(bytes.length, DATA.length), DATA, 0, DATA.length)) {
            ready.add(event);
            return;
        }
        try {
            read(JsonObjectText.parse("the event", Arrays.copyOfRange(bytes, DATA.length - 1, bytes.length)))
                    .ifPresent(object -> ready.add(
                            Buffer.buffer("data: ").appendBuffer(object.text()).appendString("\n\n")));
        } catch (ConfigException e) {
            lost = Optional.of(String.valueOf(e.getMessage()));
            ready.add(event);
        }
    }

    /** Returns the event for the client, if that is to have one. */
    private Optional<JsonObjectText> read(JsonObjectText event) {
        JsonObjectText.Edit edit = event.edit().drop(PROMPT_IDS);
        if (isContinued) {
            id.ifPresent(value -> edit.set("id", value));
            created.ifPresent(value -> edit.set("created", value));
            event.value("usage").ifPresent(usage -> edit.set("usage", whole(usage)));
        } else {
            id = event.value("id");
            created = event.value("created");
        }
        byte[] choices = event.value("choices").orElse(new byte[0]);
        if (choices.length < 3) {
            return Optional.of(edit.object());
        }
        JsonObjectText choice = JsonObjectText.parse("choices", Arrays.copyOfRange(choices, 1, choices.length - 1));
        Optional<JsonObjectText> delta = choice.value("delta").map(value -> JsonObjectText.parse("delta", value));
        Optional<byte[]> prompt = event.value(PROMPT_IDS).or(() -> choice.value(PROMPT_IDS));
        if (!isContinued) {
            prompt.ifPresent(this::takePrompt);
        } else if (!isConfirmed) {
            confirm(prompt);
        }
        boolean hasText = delta.map(each -> each.valueBytes("content"))
                        .orElseGet(() -> choice.valueBytes("text"))
                        .orElse(0)
                > 2;
        boolean beginsAgain =
                isContinued && delta.filter(each -> each.has("role")).isPresent();
        if (refusal.isPresent() || (beginsAgain && !hasText && !choice.hasNonNull("finish_reason"))) {
            return Optional.empty();
        }
        if (delta.filter(each -> each.hasNonNull("reasoning") || each.hasNonNull("tool_calls"))
                .isPresent()) {
            lost = Optional.of("its text is not all content");
        }
        choice.value(IDS).ifPresent(list -> append(pending, list));
        if (hasText) {
            if (pending.isEmpty()) {
                lost = Optional.of("the instance sends no token ids");
            }
            tokens += commas(pending);
            ids.append(pending);
            pending.setLength(0);
        }
        if (choice.hasNonNull("finish_reason")) {
            lost = Optional.of("the answer lacks its last event only");
        }
        JsonObjectText.Edit shown = choice.edit().drop(IDS, PROMPT_IDS);
        if (beginsAgain) {
            delta.ifPresent(
                    each -> shown.set("delta", each.edit().drop("role").build().getBytes()));
        }
        return Optional.of(
                edit.set("choices", "[" + text(shown.build().getBytes()) + "]").object());
    }

    /** An instance that does not know the field with the tokens, or ignores it, would begin the answer anew. */
    private void confirm(Optional<byte[]> prompt) {
        StringBuilder of = new StringBuilder();
        prompt.ifPresent(list -> append(of, list));
        isConfirmed = of.compareTo(ids) == 0;
        if (!isConfirmed) {
            refusal = Optional.of("its prompt is not the stream's with the tokens so far");
        }
    }

    @Override
    public Optional<String> refusal() {
        return refusal;
    }

    private void takePrompt(byte[] list) {
        ids.setLength(0);
        append(ids, list);
        promptTokens = commas(ids);
    }

    /** Appends the numbers of a JSON array, each with a comma behind it. */
    private static void append(StringBuilder to, byte[] list) {
        boolean isEmpty = true;
        for (int i = 1; i < list.length - 1; i++) {
            if (list[i] > ' ') {
                to.append((char) list[i]);
                isEmpty = false;
            }
        }
        if (!isEmpty) {
            to.append(',');
        }
    }

    private static int commas(StringBuilder list) {
        return (int) list.chars().filter(c -> c == ',').count();
    }

    /** The usage of a leg that continues, as that of the whole answer. */
    private byte[] whole(byte[] json) {
        JsonObjectText usage = JsonObjectText.parse("usage", json);
        int completion = before + number(usage, "completion_tokens").orElse(0);
        return usage.edit()
                .set("prompt_tokens", Integer.toString(promptTokens))
                .set("completion_tokens", Integer.toString(completion))
                .set("total_tokens", Integer.toString(promptTokens + completion))
                .build()
                .getBytes();
    }

    private static Optional<Integer> number(JsonObjectText object, String field) {
        return object.value(field)
                .map(TokenFields::text)
                .filter(digits -> digits.matches("\\d{1,9}"))
                .map(Integer::parseInt);
    }

    @Override
    public JsonObjectText continued(JsonObjectText body) {
        String all = "[" + ids.substring(0, ids.length() - 1) + "]";
        JsonObjectText.Edit edit = body.edit().set(ASK, "true");
        if (isChat) {
            edit.set(ConnectorAddress.FIELD, "{\"" + PROMPT_IDS + "\":" + all + "}");
        } else {
            edit.set(PromptField.PROMPT, all)
                    .set("max_tokens", left(number(body, "max_tokens").orElse(COMPLETION_TOKENS), 1));
        }
        for (String limit : isChat ? List.of("max_tokens", "max_completion_tokens") : List.<String>of()) {
            number(body, limit).ifPresent(most -> edit.set(limit, left(most, 1)));
        }
        number(body, "min_tokens").ifPresent(least -> edit.set("min_tokens", left(least, 0)));
        return edit.object();
    }

    private String left(int limit, int least) {
        return Integer.toString(Math.max(least, limit - tokens));
    }
}
