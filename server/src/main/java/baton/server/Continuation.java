package baton.server;

import baton.kv.JsonFields;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.regex.Pattern;
import tools.jackson.databind.JsonNode;

/**
 * {@code baton_continue}: a router continues an answer here that another instance began. The body is the client's own, with
 * {@code {"id", "created", "seeds", "choices": [{"index", "token_ids", "finished"}]}} added. The first three are from the header
 * {@link #STREAM} of the first instance, the choices from its comments {@link #commit}.
 *
 * <p>The request's sequences continue as if this instance had generated these tokens. A stream has only what follows, a whole answer everything.
 *
 * @param id of the answer
 * @param created seconds since 1970
 * @param seeds of the prompts; empty if the request has a seed
 * @param outputs by choice; choices without output so far are absent
 */
record Continuation(String id, long created, List<Long> seeds, Map<Integer, Output> outputs) {
    static final String FIELD = "baton_continue";

    /** A request header: the answer is to have {@link #STREAM} and the ids of its tokens, so that the client can continue it elsewhere. */
    static final String WANTED = "X-Baton-Token-Ids";

    /** A response header: how the answer is known and drawn. */
    static final String STREAM = "X-Baton-Stream";

    /** A request header: the request moves a stream away from this instance, which serves it while it drains. */
    static final String MOVE = "X-Baton-Move";

    /** A request header: the share of the prompt that a prefill leg computes; the decode instance computes the rest. */
    static final String PROMPT_SHARE = "X-Baton-Prompt-Share";

    private static final Pattern ID = Pattern.compile("[A-Za-z0-9._:/\\[\\]@+=~-]{1,300}");
    private static final Output NOTHING = new Output(new int[0], false);

    /** Of an answer that begins here. */
    static final Continuation NONE = new Continuation("", 0, List.of(), Map.of());

    /**
     * Output of one choice so far.
     *
     * @param finished whether its end was sent; of a stream
     */
    record Output(int[] ids, boolean finished) {}

    /** @throws ApiException if {@link #FIELD} is malformed */
    static Optional<Continuation> read(JsonFields fields, Prompts prompts) {
        return fields.object(FIELD).map(field -> {
            String id = field.string("id").orElse("");
            if (!ID.matcher(id).matches()) {
                throw ApiException.badField(
                        field.field("id"), "must be the id of the answer to continue, is '" + Json.shortened(id) + "'");
            }
            List<Long> seeds = new ArrayList<>();
            for (JsonNode seed : field.value("seeds").orElse(Json.MAPPER.createArrayNode())) {
                if (!seed.isIntegralNumber() || !seed.canConvertToLong()) {
                    throw ApiException.badField(
                            field.field("seeds"), "must be whole numbers of 64 bits, has " + Json.shown(seed));
                }
                seeds.add(seed.asLong());
            }
            Map<Integer, Output> outputs = new HashMap<>();
            for (JsonFields choice : field.objects("choices").orElse(List.of())) {
                int index = choice.integerAtLeast("index", 0).orElse(0);
                String idsField = choice.field("token_ids");
                int[] ids = choice.value("token_ids")
                        .map(value -> prompts.tokenIds(idsField, value))
                        .orElse(NOTHING.ids);
                if (outputs.put(index, new Output(ids, choice.bool("finished").orElse(false))) != null) {
                    throw ApiException.badField(choice.field("index"), "is " + index + ", which another choice is");
                }
            }
            return new Continuation(id, field.integer("created").orElse(0L), seeds, outputs);
        });
    }

    /** @throws ApiException if a request of that many prompts, with {@code n} sequences each, cannot be continued so */
    void check(int prompts, int n, boolean handsOver) {
        if (handsOver && prompts * n > 1) {
            throw ApiException.badField(
                    FIELD, "with kv_transfer_params must be of one choice, the request has " + prompts * n);
        }
        outputs.keySet().stream()
                .filter(index -> index >= prompts * n)
                .findFirst()
                .ifPresent(index -> {
                    throw ApiException.badField(
                            FIELD + ".choices",
                            "has index " + index + ", but the request has " + prompts * n + " choices");
                });
        if (!seeds.isEmpty() && seeds.size() != prompts) {
            throw ApiException.badField(
                    FIELD + ".seeds", "has " + seeds.size() + " seeds, but the request has " + prompts + " prompts");
        }
    }

    /** Whether all choices have output, so that the client has what comes before it. */
    boolean hasAll(int choices) {
        return outputs.values().stream()
                        .filter(each -> each.ids.length > 0 || each.finished)
                        .count()
                == choices;
    }

    Output output(int choice) {
        return outputs.getOrDefault(choice, NOTHING);
    }

    /** Output of the choices of a prompt, for the engine. */
    List<int[]> generated(int prompt, int n) {
        List<int[]> generated = new ArrayList<>();
        for (int i = 0; i < n; i++) {
            generated.add(output(prompt * n + i).ids);
        }
        return generated;
    }

    /** The value of {@link #STREAM}. */
    static String stream(String id, long created, List<Long> seeds) {
        return "{\"id\":\"" + id + "\",\"created\":" + created + ",\"seeds\":"
                + seeds.toString().replace(" ", "") + "}";
    }

    /** A comment before the error in which a whole answer ends behind comments: the status that it would have had without these. */
    static String status(int status) {
        return ":status " + status + "\n\n";
    }

    /**
     * An event of comments after the events with a choice's tokens, or before a whole answer, which clients do not see.
     *
     * @param ids of the tokens since the last such event
     * @param ends whether the choice ends with them
     */
    static String commit(int choice, int[] ids, boolean ends) {
        StringBuilder event = new StringBuilder(":t ").append(choice);
        for (int i = 0; i < ids.length; i++) {
            event.append(i == 0 ? ' ' : ',').append(ids[i]);
        }
        return event.append(ends ? " end\n\n" : "\n\n").toString();
    }
}
