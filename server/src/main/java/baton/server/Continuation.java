package baton.server;

import baton.engine.GenerationEvent;
import baton.engine.SamplingParams;
import baton.engine.TokenLogprobs;
import baton.kv.JsonFields;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.regex.Pattern;
import tools.jackson.databind.JsonNode;

/**
 * {@code baton_continue}: a router continues an answer here that another instance began. The body is the client's own, with
 * {@code {"id", "created", "seeds", "choices": [{"index", "token_ids", "logprobs", "finished"}]}} added. The first three are from the header
 * {@link #STREAM} of the first instance, the choices from its comments {@link #commit}.
 *
 * <p>The request's sequences continue as if this instance had generated these tokens. A stream has only the new tokens, a whole answer all
 * of them.
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
    private static final Output NOTHING = new Output(new int[0], List.of(), false);

    /** Memory of an entry of a decoded record. */
    private static final int BYTES_PER_LOGPROB = 32;

    /** Of an answer that begins here. */
    static final Continuation NONE = new Continuation("", 0, List.of(), Map.of());

    /**
     * Output of one choice so far.
     *
     * @param logprobs of a whole answer that has log probabilities: one for each id
     * @param finished whether its end was sent; of a stream
     */
    record Output(int[] ids, List<TokenLogprobs> logprobs, boolean finished) {}

    /**
     * @param scored number of most probable tokens in each record of log probabilities; empty if the answer needs no records
     * @throws ApiException if {@link #FIELD} is malformed
     */
    static Optional<Continuation> read(
            JsonFields fields, Prompts prompts, OptionalInt scored, Preparation preparation) {
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
                List<TokenLogprobs> logprobs =
                        scored.isEmpty() ? List.of() : logprobs(choice, ids, scored.getAsInt(), prompts, preparation);
                Output output =
                        new Output(ids, logprobs, choice.bool("finished").orElse(false));
                if (outputs.put(index, output) != null) {
                    throw ApiException.badField(choice.field("index"), "is " + index + ", which another choice is");
                }
            }
            return new Continuation(id, field.integer("created").orElse(0L), seeds, outputs);
        });
    }

    private static List<TokenLogprobs> logprobs(
            JsonFields choice, int[] ids, int top, Prompts prompts, Preparation preparation) {
        JsonNode records = choice.value("logprobs").orElse(Json.MAPPER.createArrayNode());
        String name = choice.field("logprobs");
        if (!records.isArray() || records.size() != ids.length) {
            throw ApiException.badField(
                    name, "must have a record for each of the " + ids.length + " token_ids, is " + Json.shown(records));
        }
        preparation.reserve((long) BYTES_PER_LOGPROB * ids.length * (top + 2));
        List<TokenLogprobs> read = new ArrayList<>(ids.length);
        for (JsonNode record : records) {
            String field = name + "[" + read.size() + "]";
            read.add(logprobs(field, ids[read.size()], record, top, prompts));
        }
        return read;
    }

    private static TokenLogprobs logprobs(String field, int id, JsonNode record, int top, Prompts prompts) {
        ByteBuffer in;
        try {
            in = ByteBuffer.wrap(Base64.getUrlDecoder().decode(record.isString() ? record.asString() : ""));
        } catch (IllegalArgumentException e) {
            in = ByteBuffer.allocate(0);
        }
        if (in.remaining() != recordBytes(top)) {
            throw ApiException.badField(
                    field,
                    "must be " + recordBytes(top) + " bytes in URL-safe base64, for " + top
                            + " most probable tokens, is " + Json.shown(record));
        }
        float logprob = logprob(field, in);
        List<TokenLogprobs.Candidate> candidates = new ArrayList<>(top);
        while (in.hasRemaining()) {
            int candidate = in.getInt();
            prompts.requireInVocabulary(field, candidate);
            candidates.add(new TokenLogprobs.Candidate(candidate, logprob(field, in)));
        }
        return new TokenLogprobs(id, logprob, 0, candidates);
    }

    private static float logprob(String field, ByteBuffer in) {
        float value = in.getFloat();
        if (!(value < Float.POSITIVE_INFINITY)) {
            throw ApiException.badField(field, "has " + value + ", which is no log probability");
        }
        return value;
    }

    /** A float of the token, then an id and a float of each of the most probable tokens. */
    private static int recordBytes(int top) {
        return 4 + 8 * top;
    }

    /** Floats as bits, so that another instance writes the same digits. The APIs show no rank of output. */
    private static String record(TokenLogprobs token) {
        ByteBuffer out = ByteBuffer.allocate(recordBytes(token.top().size())).putFloat(token.logprob());
        token.top().forEach(each -> out.putInt(each.id()).putFloat(each.logprob()));
        return Base64.getUrlEncoder().withoutPadding().encodeToString(out.array());
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

    /** Whether all choices have output, so that the client has the parts before it. */
    boolean hasAll(int choices) {
        return outputs.values().stream()
                        .filter(each -> each.ids.length > 0 || each.finished)
                        .count()
                == choices;
    }

    Output output(int choice) {
        return outputs.getOrDefault(choice, NOTHING);
    }

    /**
     * Output of the choices of a prompt, for the engine. A prompt's log probabilities are computed again, and come before a token that this instance
     * generates: the last one is generated again then.
     */
    List<int[]> generated(int prompt, SamplingParams sampling) {
        int again = sampling.promptLogprobs().isPresent() ? 1 : 0;
        List<int[]> generated = new ArrayList<>();
        for (int i = 0; i < sampling.n(); i++) {
            int[] ids = output(prompt * sampling.n() + i).ids;
            generated.add(Arrays.copyOf(ids, Math.max(0, ids.length - again)));
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
     * @param outputs since the last such event
     * @param isScored whether the log probabilities of its tokens come with them
     * @param ends whether the choice ends with them
     */
    static String commit(int choice, List<GenerationEvent.Output> outputs, boolean isScored, boolean ends) {
        StringBuilder event = new StringBuilder(":t ").append(choice);
        char before = ' ';
        for (GenerationEvent.Output output : outputs) {
            for (int i = 0; i < output.ids().length; i++) {
                event.append(before).append(output.ids()[i]);
                if (isScored) {
                    event.append(':').append(record(output.logprobs().get(i)));
                }
                before = ',';
            }
        }
        return event.append(ends ? " end\n\n" : "\n\n").toString();
    }
}
