package baton.router;

import io.vertx.core.buffer.Buffer;
import java.nio.charset.StandardCharsets;
import java.util.OptionalLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * How many tokens a request took, for the limits of keys: those of the {@code usage} at the end of its answer; without one, as of a stream that was not asked
 * for it, one for each event, and the prompt as a prefill instance counted it or as a token for each 4 bytes. Confined to the request's event loop.
 */
final class TokenCount {
    /** Enough for {@code usage}, which comes last, and the end of the stream behind it. */
    private static final int TAIL = 2048;

    private static final int BYTES_PER_TOKEN = 4;
    private static final String DONE = "data: [DONE]";
    private static final Pattern TOTAL = Pattern.compile("\"total_tokens\"\\s*:\\s*(\\d{1,12})");

    private static final Pattern PROMPT = Pattern.compile("\"(?:prompt|input)_tokens\"\\s*:\\s*(\\d{1,12})");

    private boolean counts;
    private boolean compares;
    private Buffer tail = Buffer.buffer();
    private long events;
    private OptionalLong prompt = OptionalLong.empty();
    private int promptBytes;

    /** @param counts whether the count is asked for in the end */
    TokenCount(boolean counts) {
        this.counts = counts;
    }

    /** {@link #otherPrompt} is asked for in the end. */
    void compare() {
        counts = true;
        compares = true;
    }

    /** How many tokens the prompt has by the answer, if the prefill instance has counted others. */
    OptionalLong otherPrompt() {
        OptionalLong answered = compares && prompt.isPresent()
                ? last(PROMPT, tail.toString(StandardCharsets.ISO_8859_1))
                : OptionalLong.empty();
        return answered.equals(prompt) ? OptionalLong.empty() : answered;
    }

    OptionalLong promptTokens() {
        return prompt;
    }

    private static OptionalLong last(Pattern number, String text) {
        OptionalLong last = OptionalLong.empty();
        Matcher found = number.matcher(text);
        while (found.find()) {
            last = OptionalLong.of(Long.parseLong(found.group(1)));
        }
        return last;
    }

    /** @param bytes of the prompt's JSON */
    void asked(int bytes) {
        promptBytes = bytes;
    }

    void promptTokens(long tokens) {
        prompt = OptionalLong.of(tokens);
    }

    /**
     * A part of the answer goes to the client.
     *
     * @param ended events of a stream in it
     */
    void answered(Buffer part, int ended) {
        if (!counts) {
            return;
        }
        events += ended;
        if (part.length() >= TAIL) {
            tail = part.slice(part.length() - TAIL, part.length());
            return;
        }
        Buffer both = Buffer.buffer().appendBuffer(tail).appendBuffer(part);
        tail = both.length() > TAIL ? both.slice(both.length() - TAIL, both.length()) : both;
    }

    long total() {
        String end = tail.toString(StandardCharsets.ISO_8859_1);
        long answered = events - (end.contains(DONE) ? 1 : 0);
        return last(TOTAL, end).orElseGet(() -> prompt.orElse(promptBytes / BYTES_PER_TOKEN) + answered);
    }
}
