package baton.engine;

/** Why a sequence ended. */
public enum FinishReason {
    /** A stop token, a stop string, the model's end of text, or no token that the request allows next. */
    STOP("stop"),
    /** {@code max_tokens}, the model's length, or no token that the request allows next in a format that is not complete. */
    LENGTH("length"),
    /** Caches hold less of its tokens than {@code cache_hit_threshold} requires. */
    CACHE_THRESHOLD("cache_threshold"),
    /** Its client left or asked for it. */
    ABORT("abort"),
    /** It failed; the event's message says how. */
    ERROR("error");

    private final String wireName;

    FinishReason(String wireName) {
        this.wireName = wireName;
    }

    /** The value of OpenAI's {@code finish_reason}. */
    public String wireName() {
        return wireName;
    }
}
