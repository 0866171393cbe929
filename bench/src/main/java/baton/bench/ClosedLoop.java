package baton.bench;

import baton.bench.CompletionsClient.Answer;
import java.io.IOException;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Queue;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import tools.jackson.databind.JsonNode;

/**
 * Several clients, each of which asks for one token, and again when it is answered.
 *
 * @param asked the requests and their answers
 * @param seconds from the first request to the last answer
 */
record ClosedLoop(List<Asked> asked, double seconds) {
    record Asked(JsonNode prompt, Answer answer) {}

    double requestsPerSecond() {
        return asked.size() / seconds;
    }

    /**
     * Asks until there are no prompts left.
     *
     * @param prompts is used by all clients
     * @param deadline for each answer
     * @param all for all of it
     * @throws IOException if a request fails
     */
    static ClosedLoop run(
            CompletionsClient server,
            int clients,
            Supplier<Optional<JsonNode>> prompts,
            Duration deadline,
            Duration all)
            throws IOException {
        Queue<Asked> asked = new ConcurrentLinkedQueue<>();
        try (CompletionsClient.Session session = server.new Session();
                ExecutorService executor = Executors.newVirtualThreadPerTaskExecutor()) {
            Callable<Boolean> client = () -> {
                Optional<JsonNode> prompt = prompts.get();
                while (prompt.isPresent()) {
                    asked.add(new Asked(prompt.get(), session.ask(prompt.get(), 1, deadline)));
                    prompt = prompts.get();
                }
                return true;
            };
            long start = System.nanoTime();
            List<Future<Boolean>> ends =
                    executor.invokeAll(Collections.nCopies(clients, client), all.toNanos(), TimeUnit.NANOSECONDS);
            double seconds = (System.nanoTime() - start) * 1e-9;
            for (Future<Boolean> end : ends) {
                switch (end.state()) {
                    case SUCCESS -> {}
                    case FAILED -> throw new IOException(end.exceptionNow().getMessage(), end.exceptionNow());
                    case CANCELLED, RUNNING ->
                        throw new IOException(server.url() + ": " + clients + " clients were not answered within "
                                + all.toSeconds() + " s");
                }
            }
            return new ClosedLoop(List.copyOf(asked), seconds);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException(server.url() + ": interrupted", e);
        }
    }
}
