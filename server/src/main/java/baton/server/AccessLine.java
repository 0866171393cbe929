package baton.server;

import java.util.Locale;
import java.util.Optional;
import java.util.OptionalDouble;

/**
 * A request's line in the access log, the same for all requests: those that generate nothing have no tokens.
 *
 * @param client address and port
 * @param request method and path
 * @param status HTTP status, or 499 if the client left before its answer was complete
 * @param id of the response, or of the request if it came to none; {@code -} if it has none
 * @param tokens of a request that got as far as the engine
 * @param ttftMillis from the request's arrival to its first token
 * @param totalMillis from the request's arrival to the end of its answer
 * @param finish finish reasons of what was generated, or how it ended otherwise: {@code refused}, {@code error}, ...
 * @param error what the client was told went wrong
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
     * Tokens of all of a request's prompts and choices.
     *
     * @param cached those of the prompts that were not computed for this request
     * @param transferred those of the cached that came from elsewhere
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
        // What a client sends must not look like another line.
        return line.toString().replaceAll("\\p{Cntrl}", "?");
    }
}
