package baton.engine.core;

import baton.grammar.automaton.TokenGrammar;
import baton.kv.GeneratedBuilder;
import baton.kv.JsonFields;
import java.util.Optional;

/**
 * The options of a {@link Request} beside its prompt and sampling.
 *
 * @param generated output that another instance has generated
 * @param format of the output, compiled
 * @param priority lower values are served first under {@code --scheduling-policy priority}
 * @param cacheHitThreshold share of its tokens that caches must hold
 * @param first whether it is served before requests without this
 * @param seed of the sampling
 * @param arrivalNanos time of arrival on the core's ticker
 * @param warmsUp whether the request is only computed: its blocks are not published in the prefix cache and the connector is not notified
 */
@GeneratedBuilder
public record SequenceOptions(
        int[] generated,
        Optional<TokenGrammar> format,
        Optional<JsonFields> kvTransferParams,
        Optional<String> cacheSalt,
        int priority,
        double cacheHitThreshold,
        boolean first,
        long seed,
        long arrivalNanos,
        boolean warmsUp) {
    /** A builder with the options of a new request. */
    public static SequenceOptionsBuilder builder() {
        return SequenceOptionsBuilder.builder().generated(new int[0]);
    }
}
