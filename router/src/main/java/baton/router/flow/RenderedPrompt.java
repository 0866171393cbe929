package baton.router.flow;

import baton.router.body.JsonObjectText;
import baton.router.body.JsonObjectText.Edit;
import baton.router.body.PromptField;
import baton.router.upstream.ConnectorAddress;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;

/**
 * The token ids that a prefill instance has made of a request's text or messages. The decode leg gets them in the place of a text, and
 * beside messages, in {@code kv_transfer_params.prompt_token_ids}: two instances that render or tokenize differently would compute another
 * prompt than the one that they hand over.
 */
final class RenderedPrompt {
    /** The field of requests that asks for {@link #IDS} in the answer. */
    private static final String ASK = "return_token_ids";

    /** The field of a chat's answer, of a completion's choices, and of {@code kv_transfer_params}. */
    private static final String IDS = "prompt_token_ids";

    private static final byte[] NAME = ('"' + IDS + '"').getBytes(StandardCharsets.US_ASCII);

    private RenderedPrompt() {}

    /** Whether the instances would make tokens of the request by themselves. One with {@code echo} keeps its text, which is in the answer. */
    static boolean isAsked(JsonObjectText body) {
        boolean echoes = body.value("echo")
                .filter(echo -> Arrays.equals(echo, "true".getBytes(StandardCharsets.US_ASCII)))
                .isPresent();
        return !echoes && (body.isText(PromptField.PROMPT) || isConversation(body));
    }

    private static boolean isConversation(JsonObjectText body) {
        return PromptField.name(body)
                .filter(name -> !name.equals(PromptField.PROMPT))
                .isPresent();
    }

    static Edit ask(JsonObjectText body, Edit edit) {
        return isAsked(body) ? edit.set(ASK, "true") : edit;
    }

    /**
     * The ids of an answer, put into a decode leg.
     *
     * @param params of the decode leg's {@code kv_transfer_params}, if it has them
     * @return empty if the answer has no ids, or not for each prompt
     */
    static Optional<Edit> put(JsonObjectText body, JsonObjectText answer, Edit edit, Optional<byte[]> params) {
        if (!isAsked(body)) {
            return Optional.empty();
        }
        Optional<byte[]> chat = answer.value(IDS).filter(RenderedPrompt::isArray);
        if (chat.isPresent() && isConversation(body)) {
            byte[] both = params.map(given -> JsonObjectText.parse(ConnectorAddress.FIELD, given)
                            .edit()
                            .set(IDS, chat.get())
                            .build()
                            .getBytes())
                    .orElseGet(() -> joined("{\"" + IDS + "\":", List.of(chat.get()), "}"));
            return Optional.of(edit.set(ConnectorAddress.FIELD, both));
        }
        List<byte[]> each =
                answer.value("choices").map(RenderedPrompt::ofChoices).orElse(List.of());
        if (each.isEmpty() || each.size() != PromptField.count(body) || !body.hasNonNull("prompt")) {
            return Optional.empty();
        }
        return Optional.of(edit.set("prompt", each.size() == 1 ? each.getFirst() : joined("[", each, "]")));
    }

    private static boolean isArray(byte[] json) {
        return json.length > 2 && json[0] == '[';
    }

    private static byte[] joined(String begin, List<byte[]> parts, String end) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        out.writeBytes(begin.getBytes(StandardCharsets.US_ASCII));
        for (int i = 0; i < parts.size(); i++) {
            if (i > 0) {
                out.write(',');
            }
            out.writeBytes(parts.get(i));
        }
        out.writeBytes(end.getBytes(StandardCharsets.US_ASCII));
        return out.toByteArray();
    }

    /**
     * The ids of each choice's prompt; empty if a choice names the field and has none. The text is valid JSON and need not be parsed again: in a string the
     * field's name would have a backslash before its last quote.
     */
    private static List<byte[]> ofChoices(byte[] choices) {
        List<byte[]> all = new ArrayList<>();
        for (int at = indexOfName(choices, 0); at < choices.length; at = indexOfName(choices, at)) {
            int start = past(choices, at + NAME.length, false);
            if (start == choices.length || choices[start] != ':') {
                at = start;
                continue;
            }
            start = past(choices, start + 1, false);
            int end = past(choices, start + 1, true);
            if (end >= choices.length || choices[start] != '[' || choices[end] != ']' || end - start < 2) {
                return List.of();
            }
            all.add(Arrays.copyOfRange(choices, start, end + 1));
            at = end;
        }
        return all;
    }

    private static int indexOfName(byte[] text, int from) {
        int at = from;
        while (at < text.length
                && (text[at] != '"'
                        || at + NAME.length > text.length
                        || !Arrays.equals(text, at, at + NAME.length, NAME, 0, NAME.length))) {
            at++;
        }
        return at;
    }

    /** The first place from there on that is no white space, nor, if these are passed, of a list of numbers. */
    private static int past(byte[] text, int from, boolean numbers) {
        int at = from;
        while (at < text.length
                && (text[at] <= ' ' || (numbers && (text[at] == ',' || (text[at] >= '0' && text[at] <= '9'))))) {
            at++;
        }
        return at;
    }
}
