package baton.engine;

import java.util.Locale;

/** Why a sequence ended. */
public enum FinishReason {
    /** A stop token, a stop string, the model's end of text, or no token that the request allows next. */
    STOP,
    /** {@code max_tokens}, the model's length, or no token that the request allows next in a format that is not complete. */
    LENGTH,
    /** Caches hold less of its tokens than {@code cache_hit_threshold} requires. */
    CACHE_THRESHOLD,
    /** Its client left or asked for it. */
    ABORT,
    /** The request failed; the event's message has the cause. */
    ERROR;

    /** The value of OpenAI's {@code finish_reason}. */
    public String wireName() {
        return name().toLowerCase(Locale.ROOT);
    }
}
