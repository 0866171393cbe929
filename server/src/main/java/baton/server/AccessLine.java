package baton.server;

import java.util.Locale;
import java.util.Optional;
import java.util.OptionalDouble;

/**
 * A request's line in the access log, the same for all requests: those that generate nothing have no tokens.
 *
 * @param client address and port
 * @param request method and path
 * @param status HTTP status, or 499 if the client disconnected before its answer was complete
 * @param id of the response, else of the request, else {@code -}
 * @param tokens of a request that the engine had
 * @param ttftMillis from the request's arrival to its first token
 * @param totalMillis from the request's arrival to the end of its answer
 * @param finish finish reasons of the sequences, or another end: {@code refused}, {@code error}, ...
 * @param error the error's message
 */
record AccessLine(
        String client,
        String request,
        int status,
        String id,
        Optional<Tokens> tokens,
        OptionalDouble ttftMillis,
        double totalMillis,
        String finish,
        Optional<String> error) {

    /**
     * Tokens of all prompts and choices of a request.
     *
     * @param cached prompt tokens that were not computed for this request
     * @param transferred cached tokens from another instance or a store
     */
    record Tokens(int prompt, int cached, int transferred, int output) {}

    @Override
    public String toString() {
        StringBuilder line = new StringBuilder();
        line.append(String.format(Locale.ROOT, "%s \"%s\" %d %s", client, request, status, id));
        tokens.ifPresent(t -> line.append(String.format(
                Locale.ROOT,
                " prompt=%d cached=%d transferred=%d output=%d",
                t.prompt(),
                t.cached(),
                t.transferred(),
                t.output())));
        ttftMillis.ifPresent(ttft -> line.append(String.format(Locale.ROOT, " ttft=%.1fms", ttft)));
        line.append(String.format(Locale.ROOT, " total=%.1fms finish=%s", totalMillis, finish));
        error.ifPresent(message -> line.append(" error=\"").append(message).append('"'));
        // A client's input must not look like another line.
        return line.toString().replaceAll("\\p{Cntrl}", "?");
    }
}
