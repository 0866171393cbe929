package baton.router;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import java.nio.charset.StandardCharsets;
import java.util.List;

/**
 * A completion request with several prompts, of which each is served by itself: some at once, the next one when one has ended. Confined to the client's
 * event loop.
 */
final class BatchedRequest {
    /** Prompts that are served at once. */
    static final int AT_ONCE = 64;

    /** The limit of the bodies of requests that are served at once. */
    private static final long MOST_BYTES = 16 << 20;

    /** The limit of the bodies of all together; each has all other fields of the request. */
    private static final long MOST_BYTES_OF_ALL = 256 << 20;

    /** All fields but the prompt. */
    private final JsonObjectText rest;

    private final int atOnce;
    private final List<byte[]> prompts;
    private final ProxiedRequest parent;
    private final BatchedAnswer answer;
    private int begun;

    private BatchedRequest(
            JsonObjectText rest, List<byte[]> prompts, Answer client, ProxiedRequest parent, int samples) {
        this.rest = rest;
        this.atOnce = Math.clamp(MOST_BYTES / rest.length(), 1, AT_ONCE);
        this.prompts = prompts;
        this.parent = parent;
        this.answer = new BatchedAnswer(client, parent, this::partEnded, prompts.size(), samples);
    }

    /**
     * Begins to serve the prompts.
     *
     * @throws ConfigException if they and the other fields are too much, or {@code n} is no number of choices
     */
    static BatchedRequest start(JsonObjectText body, List<byte[]> prompts, Answer client, ProxiedRequest parent) {
        JsonObjectText rest = body.edit().drop("prompt").object();
        if ((long) rest.length() * prompts.size() > MOST_BYTES_OF_ALL) {
            throw new ConfigException(
                    "prompt",
                    "holds %d prompts beside %d bytes of other fields, must hold at most %d beside so many"
                            .formatted(prompts.size(), rest.length(), MOST_BYTES_OF_ALL / rest.length()));
        }
        BatchedRequest batch = new BatchedRequest(rest, prompts, client, parent, samples(body));
        batch.begin();
        return batch;
    }

    private void begin() {
        while (begun < Math.min(atOnce, prompts.size()) && !answer.isOver()) {
            serveNext();
        }
    }

    private static int samples(JsonObjectText body) {
        String n = body.value("n")
                .map(value -> new String(value, StandardCharsets.US_ASCII))
                .orElse("1");
        if (!n.matches("[1-9][0-9]{0,5}")) {
            throw new ConfigException(
                    "n", "is " + n.substring(0, Math.min(n.length(), 32)) + ", must be a number of choices");
        }
        return Integer.parseInt(n);
    }

    private void serveNext() {
        int number = begun++;
        parent.serve(
                answer.next(),
                number,
                rest.edit().set("prompt", prompts.get(number)).object());
    }

    /** The client has left, or the request has ended. */
    void abandon() {
        answer.abandon();
    }

    private void partEnded() {
        if (begun < prompts.size() && !answer.isOver()) {
            serveNext();
        }
    }
}
