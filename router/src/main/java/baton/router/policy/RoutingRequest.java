package baton.router.policy;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import baton.router.body.PromptField;
import baton.router.cache.TokenChain;
import java.util.Optional;

/**
 * The properties of a completion request that policies use.
 *
 * @param prefix of its prompt
 * @param session which conversation or user it belongs to, if the client says
 * @param tokens of its prompt, if they are known
 * @param hasOnePrompt false if it has several
 */
public record RoutingRequest(
        PromptPrefix prefix, Optional<String> session, Optional<TokenChain> tokens, boolean hasOnePrompt) {
    /** The header that names a session; without it the field {@code user} of the body does. */
    public static final String SESSION_HEADER = "X-Session-Id";

    /** A request of one prompt with unknown tokens. */
    public RoutingRequest(PromptPrefix prefix, Optional<String> session) {
        this(prefix, session, Optional.empty(), true);
    }

    public RoutingRequest withTokens(Optional<TokenChain> value) {
        return new RoutingRequest(prefix, session, value, hasOnePrompt);
    }

    /** Without a prompt. */
    public static final RoutingRequest NONE = new RoutingRequest(PromptPrefix.NONE, Optional.empty());

    /**
     * @param header value of {@link #SESSION_HEADER}
     * @param digests whether the prefix is needed, not only its length
     * @throws ConfigException if there are too many prompts
     */
    public static RoutingRequest of(JsonObjectText body, Optional<String> header, boolean digests) {
        Optional<String> session = header.filter(value -> !value.isBlank())
                .or(() -> body.value("user").map(String::new));
        PromptPrefix prefix = digests ? PromptPrefix.of(body) : PromptPrefix.lengthOf(body);
        return new RoutingRequest(prefix, session, Optional.empty(), PromptField.count(body) == 1);
    }
}
