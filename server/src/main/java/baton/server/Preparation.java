package baton.server;

import baton.engine.text.EncodingWatch;
import baton.engine.text.Tokenizer;
import io.vertx.core.buffer.Buffer;
import java.time.Duration;
import java.util.function.IntFunction;

/**
 * One request from the first byte of its body until the engine has it, or until a client has its list of tokens: the memory it
 * holds of {@link PreparingMemory}, and its deadline.
 *
 * <p>Used by one thread after the other, first the event loop, then a preparing thread; {@link #abandon} may come from the event loop at any
 * time.
 */
final class Preparation {
    private final PreparingMemory memory;
    private final HttpExchange exchange;
    private final Duration timeout;
    private long held;
    private long heldForPiece;
    private long heldForAnswer;
    private volatile boolean abandoned;

    Preparation(PreparingMemory memory, HttpExchange exchange, Duration timeout) {
        this.memory = memory;
        this.exchange = exchange;
        this.timeout = timeout;
    }

    /** @throws ApiException 503 if there is no room now, 413 if there never is */
    void reserve(long bytes) {
        if (held + bytes > memory.most()) {
            throw ApiException.tooLarge("the request would take " + (held + bytes)
                    + " bytes of memory to read, a request may take " + memory.most());
        }
        if (!memory.reserve(bytes, held)) {
            throw ApiException.unavailable(
                    "the requests that are being read take all memory that there is for it; try again later");
        }
        held += bytes;
    }

    /** Keeps the answer's part of the memory held until {@link #release}. */
    Buffer keep(Buffer answer) {
        heldForAnswer = Math.min(held, answer.length());
        return answer;
    }

    /** Releases all memory except the part kept for the answer. */
    void releaseRequest() {
        memory.release(held - heldForAnswer);
        held = heldForAnswer;
        heldForPiece = 0;
    }

    /** Releases all memory. */
    void release() {
        heldForAnswer = 0;
        releaseRequest();
    }

    /** The result is not needed any more. */
    void abandon() {
        abandoned = true;
    }

    /** Whether it was abandoned because the deadline is over. */
    boolean isLate() {
        return abandoned;
    }

    /** The error of a request that misses the deadline. */
    ApiException late() {
        return ApiException.unavailable(
                "the request was not read and encoded within " + timeout.toSeconds() + " s; try again later");
    }

    /** @throws ApiException if the result is not needed any more */
    void check() {
        if (abandoned || exchange.clientLeft()) {
            throw late();
        }
    }

    /**
     * For encoding a text. Checks before each piece, and reserves the memory of a large piece.
     *
     * @param field the text, for errors
     * @param most tokens that the text may have
     * @param tooLong makes the exception for a text with more, from a lower bound of its tokens
     */
    EncodingWatch encoding(String field, int most, IntFunction<ApiException> tooLong) {
        return (characters, tokens) -> {
            check();
            if (tokens > most) {
                throw tooLong.apply(tokens);
            }
            memory.release(heldForPiece);
            held -= heldForPiece;
            heldForPiece = 0;
            if (characters > 2 * Tokenizer.PIECE_CHARACTERS) {
                long bytes = (long) characters * Tokenizer.BYTES_PER_CHARACTER;
                if (bytes > memory.most() - held) {
                    throw ApiException.badField(
                            field,
                            "has " + characters + " characters without a place to cut them, must have at most "
                                    + (memory.most() - held) / Tokenizer.BYTES_PER_CHARACTER
                                    + "; token ids may be longer");
                }
                reserve(bytes);
                heldForPiece = bytes;
            }
        };
    }
}
