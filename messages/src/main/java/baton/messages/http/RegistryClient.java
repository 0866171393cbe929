package baton.messages.http;

import baton.kv.ConfigException;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import java.util.function.Supplier;

/** Asks registries of instances, each up to three times. */
public final class RegistryClient implements AutoCloseable {
    private static final int ATTEMPTS = 3;
    private static final Duration BETWEEN_ATTEMPTS = Duration.ofMillis(100);
    private static final Duration LONGEST = Duration.ofMinutes(1);
    private static final int MOST_BYTES = 1 << 20;

    private final PeerAccess access;
    private final Executor background;
    private final HttpClient http =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

    /** @param access which registries may be asked */
    public RegistryClient(PeerAccess access, Executor background) {
        this.access = access;
        this.background = background;
    }

    /**
     * Sends a {@code GET} request.
     *
     * @param address {@code http://host:port}
     * @param path with its query
     * @return the answer's body; fails with a {@link MessageException}
     */
    public CompletableFuture<String> get(String address, String path, Duration timeout) {
        try {
            URI base = URI.create(address);
            if (!"http".equals(base.getScheme()) || base.getHost() == null) {
                throw new IllegalArgumentException("it must be http://host:port");
            }
            if (!access.mayConnect(base.getHost())) {
                access.refuse(address, access.notAllowed());
                throw new IllegalArgumentException(access.notAllowed());
            }
            return send(HttpRequest.newBuilder(base.resolve(path))
                    .timeout(timeout)
                    .GET()
                    .build());
        } catch (IllegalArgumentException e) {
            return CompletableFuture.failedFuture(new MessageException(
                    "bootstrap server '" + PeerAddress.shown(address) + "': " + e.getMessage(), e));
        }
    }

    /** Sends a request with a timeout, which is that of the whole answer. A server that does not answer is asked again; one that refuses is not. */
    public CompletableFuture<String> send(HttpRequest request) {
        return ask(request.uri().toString(), () -> once(request));
    }

    private CompletableFuture<String> once(HttpRequest request) {
        CompletableFuture<HttpResponse<String>> exchange = http.sendAsync(
                request, HttpResponse.BodyHandlers.limiting(HttpResponse.BodyHandlers.ofString(), MOST_BYTES));
        // The request's own timeout ends with the headers of the answer.
        return exchange.copy()
                .orTimeout(request.timeout().orElse(LONGEST).toNanos(), TimeUnit.NANOSECONDS)
                .whenComplete((_, _) -> exchange.cancel(true))
                .thenApply(answer -> {
                    if (answer.statusCode() != 200) {
                        throw new CompletionException(new MessageException(request.uri() + ": status "
                                + answer.statusCode() + ": " + PeerAddress.shown(answer.body())));
                    }
                    return answer.body();
                });
    }

    /**
     * Asks a registry's question by other means than HTTP.
     *
     * @param name for errors
     * @param question fails with an {@link IOException} or {@link TimeoutException} if it is not answered, and is asked again then; with a
     *     {@link MessageException} if it is refused
     */
    public CompletableFuture<String> ask(String name, Supplier<CompletableFuture<String>> question) {
        return ask(name, question, ATTEMPTS);
    }

    private CompletableFuture<String> ask(String name, Supplier<CompletableFuture<String>> question, int attempts) {
        return question.get().exceptionallyCompose(failure -> {
            Throwable cause = cause(failure);
            if ((cause instanceof IOException || cause instanceof TimeoutException) && attempts > 1) {
                Executor later = CompletableFuture.delayedExecutor(
                        BETWEEN_ATTEMPTS.toMillis(), TimeUnit.MILLISECONDS, background);
                return CompletableFuture.runAsync(() -> {}, later).thenCompose(_ -> ask(name, question, attempts - 1));
            }
            return CompletableFuture.failedFuture(
                    cause instanceof MessageException
                            ? cause
                            : new MessageException(
                                    name + ": "
                                            + (cause instanceof TimeoutException
                                                    ? "no complete answer in time"
                                                    : cause),
                                    cause));
        });
    }

    /**
     * Reads an answer's body, as a stage of its future.
     *
     * @param reader throws {@link ConfigException} if the body is malformed: then the stage fails with a {@link MessageException}
     */
    public static <T> T read(String body, Function<String, T> reader) {
        try {
            return reader.apply(body);
        } catch (ConfigException e) {
            throw new CompletionException(new MessageException("the registry's answer: " + e.getMessage(), e));
        }
    }

    /** Without the exception that a future puts around it. */
    public static Throwable cause(Throwable failure) {
        return failure instanceof CompletionException wrapped && wrapped.getCause() != null
                ? wrapped.getCause()
                : failure;
    }

    @Override
    public void close() {
        http.shutdownNow();
    }
}
