package baton.router;

import baton.router.body.JsonObjectText;
import baton.router.upstream.Instance;
import io.vertx.core.MultiMap;
import io.vertx.core.buffer.Buffer;
import java.util.List;
import java.util.Optional;

/** How far an answer is: the token ids that its instance sends beside or before the text, with which another instance continues it. Confined to the request's event loop. */
sealed interface StreamPosition permits TokenComments, TokenFields {
    /** The field of a request that a Baton instance continues. */
    String FIELD = "baton_continue";

    /** The body of the request's legs. */
    default JsonObjectText asking(JsonObjectText body) {
        return body;
    }

    /** Adds to the headers of a decode leg. */
    default void ask(MultiMap headers) {}

    /**
     * An answer begins, of which the client has nothing yet.
     *
     * @param headers of the instance's answer
     */
    void begin(MultiMap headers);

    /** Another instance's answer begins; returns false if it does not continue the stream. */
    boolean resume(MultiMap headers);

    /** Whether the instance sends token ids. */
    boolean isKnown();

    /** Why another instance cannot continue; empty if it can. */
    Optional<String> whyNot();

    /** Whether this instance could continue, or compute the tokens for another one that does. */
    default boolean canBeAt(Instance instance) {
        return true;
    }

    /** Tokens of all choices. */
    long tokens();

    /** About how many bytes {@link #continued} adds. */
    default long bytes() {
        return 8 * tokens();
    }

    /** Whether another instance can continue while this one is there. */
    default boolean canMove() {
        return whyNot().isEmpty() && tokens() > 0;
    }

    /** The status of a whole answer behind token ids. */
    default int status() {
        return 200;
    }

    /** Whether prompt and tokens can be computed by a prefill leg. */
    boolean canHandOver();

    /**
     * Takes an event of the instance.
     *
     * @param ready gets the events that the client is to have now
     */
    void accept(Buffer event, List<Buffer> ready);

    /** Why an answer that was begun does not continue the stream; empty if it does. */
    default Optional<String> refusal() {
        return Optional.empty();
    }

    /** The events held, at the end of a complete answer. */
    default void release(List<Buffer> ready) {}

    /** Drops the events held; another instance makes their tokens again. */
    default void drop() {}

    /**
     * The body of a leg that continues.
     *
     * @param body of the request
     * @throws baton.kv.ConfigException if the instance has sent no valid JSON
     */
    JsonObjectText continued(JsonObjectText body);

    /** How the rest is made if not as that of an answer that was not broken off, in words; empty if it is the same. */
    default String difference() {
        return "";
    }
}
