package baton.router;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import baton.router.flow.HandoffFlow;
import java.util.List;
import java.util.Optional;
import tools.jackson.core.JsonParser;
import tools.jackson.core.JsonToken;
import tools.jackson.core.ObjectReadContext;
import tools.jackson.core.json.JsonFactory;

/** Fields of a client's request that make an instance connect to an address of the client's choice. */
final class AddressFields {
    private static final JsonFactory FACTORY = new JsonFactory();
    /** Fields of chats and of {@code /v1/responses}; a body may have both. */
    private static final List<String> CONVERSATIONS = List.of("messages", "input");

    private static final String EXTRA_ARGS = "vllm_xargs";
    private static final String MEDIA = "_url";
    private static final String INLINE = "data:";

    private AddressFields() {}

    /**
     * Refuses {@code kv_transfer_params}, also as one of {@code vllm_xargs}, with which vLLM's become the same; and media in messages
     * that are not inline.
     *
     * @throws ConfigException naming the field
     */
    static void refuse(JsonObjectText body, RouterConfig config) {
        if (!config.trustClientKvParams()) {
            if (body.hasNonNull(HandoffFlow.PARAMS)) {
                throw refused(HandoffFlow.PARAMS);
            }
            Optional<byte[]> extra = body.value(EXTRA_ARGS);
            if (extra.isPresent()
                    && extra.get()[0] == '{'
                    && JsonObjectText.parse(EXTRA_ARGS, extra.get()).has(HandoffFlow.PARAMS)) {
                throw refused(EXTRA_ARGS + "." + HandoffFlow.PARAMS);
            }
        }
        if (!config.security().mediaUrls()) {
            CONVERSATIONS.forEach(name -> body.value(name).ifPresent(messages -> refuseMedia(name, messages)));
        }
    }

    private static ConfigException refused(String field) {
        return new ConfigException(
                field,
                "is refused: it leads instances to addresses, and the router sets it itself; see --trust-client-kv-params");
    }

    /** The value of a field such as {@code image_url} is a URL, or an object that has one. */
    private static void refuseMedia(String field, byte[] messages) {
        if (!mayName(messages)) {
            return;
        }
        try (JsonParser parser = FACTORY.createParser(ObjectReadContext.empty(), messages)) {
            String media = "";
            int depth = 0;
            int mediaDepth = 0;
            for (JsonToken token = parser.nextToken(); token != null; token = parser.nextToken()) {
                if (token.isStructStart()) {
                    depth++;
                } else if (token.isStructEnd()) {
                    depth--;
                    if (depth < mediaDepth) {
                        mediaDepth = 0;
                    }
                } else if (token == JsonToken.PROPERTY_NAME
                        && mediaDepth == 0
                        && parser.currentName().endsWith(MEDIA)) {
                    media = parser.currentName();
                    token = parser.nextToken();
                    if (token == JsonToken.VALUE_STRING) {
                        requireInline(field, media, parser.getString());
                    } else if (token != null && token.isStructStart()) {
                        depth++;
                        mediaDepth = depth;
                    }
                } else if (token == JsonToken.VALUE_STRING && mediaDepth > 0 && "url".equals(parser.currentName())) {
                    requireInline(field, media, parser.getString());
                }
            }
        }
    }

    /** Whether the text has such a name, perhaps with escapes. Most messages have not, and are not read again. */
    private static boolean mayName(byte[] messages) {
        for (int i = 1; i < messages.length; i++) {
            if ((messages[i] == 'u' && (messages[i - 1] == '_' || messages[i - 1] == '\\'))) {
                return true;
            }
        }
        return false;
    }

    private static void requireInline(String field, String media, String url) {
        if (!url.strip().regionMatches(true, 0, INLINE, 0, INLINE.length())) {
            throw new ConfigException(
                    field, media + " must be a data: URL: others lead instances to addresses; see --allow-media-urls");
        }
    }
}
