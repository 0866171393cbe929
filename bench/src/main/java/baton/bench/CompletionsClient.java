package baton.bench;

import baton.bench.serve.Backend;
import baton.bench.serve.Endpoint;
import baton.bench.serve.EndpointClient;
import baton.bench.serve.EndpointClient.LateException;
import baton.bench.serve.ServedModel;
import baton.bench.serve.StreamedAnswer;
import baton.bench.serve.StreamedAnswer.Token;
import baton.kv.ConfigException;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Flow;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/** One server with OpenAI's API, asked for streamed completions. Errors contain its URL and its answer. */
public final class CompletionsClient {
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final Duration CONNECT_DEADLINE = Duration.ofSeconds(5);

    private final String base;
    private final String model;

    private CompletionsClient(String base, String model) {
        this.base = base;
        this.model = model;
    }

    /**
     * A server at this URL, with or without a {@code /v1} at its end.
     *
     * @param field the setting that it comes from
     * @param model to ask for; empty: the first of the server's list
     * @param deadline for the server's answer
     * @throws ConfigException if the URL is malformed
     * @throws IOException if the server does not list its models
     */
    public static CompletionsClient connect(String field, String url, Optional<String> model, Duration deadline)
            throws IOException {
        String base = Endpoint.base(field, url).replaceFirst("/v1$", "");
        return new CompletionsClient(
                base,
                model.isPresent()
                        ? model.get()
                        : ServedModel.first(Endpoint.of(Backend.OPENAI, base), deadline)
                                .name());
    }

    /** The server's URL, without {@code /v1}. */
    public String url() {
        return base;
    }

    public String model() {
        return model;
    }

    /** The server answered with a status other than 200. */
    static final class RefusedException extends IOException {
        private final int status;

        RefusedException(int status, String message) {
            super(message);
            this.status = status;
        }

        /** Whether the server refuses this request, not every request. */
        boolean isForTheRequest() {
            return status >= 400 && status < 500;
        }
    }

    /**
     * A streamed answer. Times are {@link System#nanoTime}'s.
     *
     * @param sent when the request was sent
     * @param events when tokens came, and how many; at least one
     * @param promptTokens as the server counts them, 0 if it reports no count
     * @param cachedTokens those of the prompt that were not computed, likewise
     * @param tokens listed by the server
     */
    record Answer(long sent, List<Event> events, int promptTokens, int cachedTokens, List<Token> tokens) {
        long first() {
            return events.getFirst().at;
        }

        long last() {
            return events.getLast().at;
        }

        double secondsToFirst() {
            return (first() - sent) * 1e-9;
        }
    }

    /** Seconds of a step of answers to requests that were sent at once, while all of them decode; empty if they never did. */
    static OptionalDouble secondsPerStep(List<Answer> answers) {
        long start = answers.stream().mapToLong(Answer::first).max().orElseThrow();
        long end = answers.stream().mapToLong(Answer::last).min().orElseThrow();
        double tokens = answers.stream()
                .flatMap(answer -> answer.events.stream())
                .filter(event -> event.at > start && event.at <= end)
                .mapToDouble(Event::tokens)
                .sum();
        return tokens == 0 ? OptionalDouble.empty() : OptionalDouble.of((end - start) * 1e-9 * answers.size() / tokens);
    }

    /** @param tokens of each event; estimated as equally many in each if the server does not report them */
    record Event(long at, double tokens) {}

    /**
     * Sends one request for each prompt, all at once, and waits for all answers.
     *
     * @param prompts texts, or arrays of token ids
     * @param maxTokens that each answer has
     * @throws RefusedException if the server refuses one
     * @throws LateException if an answer does not come within the deadline
     * @throws IOException if an answer is too short, or none
     */
    List<Answer> ask(List<JsonNode> prompts, int maxTokens, Duration deadline) throws IOException {
        // A new session: the server may close a connection that has been idle at any moment.
        try (Session session = new Session()) {
            return session.ask(prompts, maxTokens, deadline);
        }
    }

    /**
     * Sends one request and waits for the answer, which lists its tokens.
     *
     * @param margins whether each token has its margin
     * @throws IOException as {@link #ask(List, int, Duration)} does
     */
    Answer ask(JsonNode prompt, int maxTokens, boolean margins, Duration deadline) throws IOException {
        try (Session session = new Session()) {
            return session.ask(List.of(prompt), maxTokens, true, margins, deadline)
                    .getFirst();
        }
    }

    /** Requests that follow each other at once, over connections that are kept. Several threads may use it. */
    final class Session implements AutoCloseable {
        private final HttpClient http = newClient();

        /** As {@link CompletionsClient#ask(List, int, Duration)}. */
        List<Answer> ask(List<JsonNode> prompts, int maxTokens, Duration deadline) throws IOException {
            return ask(prompts, maxTokens, maxTokens > 1, false, deadline);
        }

        /** Sends one request and waits for the answer, which lists its tokens. */
        Answer ask(JsonNode prompt, int maxTokens, Duration deadline) throws IOException {
            return ask(List.of(prompt), maxTokens, true, false, deadline).getFirst();
        }

        private List<Answer> ask(List<JsonNode> prompts, int maxTokens, boolean ids, boolean margins, Duration deadline)
                throws IOException {
            String url = base + "/v1/completions";
            List<HttpRequest> requests = prompts.stream()
                    .map(prompt -> HttpRequest.newBuilder(URI.create(url))
                            .header("Content-Type", "application/json")
                            .POST(HttpRequest.BodyPublishers.ofString(body(prompt, maxTokens, ids, margins)))
                            .build())
                    .toList();
            List<Answer> answers = new ArrayList<>();
            for (Reply reply : send(http, url, requests, deadline)) {
                answers.add(reply.answer(url, maxTokens));
            }
            return answers;
        }

        @Override
        public void close() {
            http.shutdownNow();
        }
    }

    private static HttpClient newClient() {
        return HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .connectTimeout(CONNECT_DEADLINE)
                .build();
    }

    private String body(JsonNode prompt, int maxTokens, boolean ids, boolean margins) {
        ObjectNode body = JSON.createObjectNode().put("model", model);
        body.set("prompt", prompt);
        body.put("max_tokens", maxTokens)
                .put("temperature", 0)
                .put("ignore_eos", true)
                .put("stream", true)
                .put("return_token_ids", ids);
        if (margins) {
            body.put("logprobs", 2).put("return_tokens_as_token_ids", true);
        }
        body.putObject("stream_options").put("include_usage", true);
        return body.toString();
    }

    /** The answers, all of status 200, in the order of the requests. */
    private static List<Reply> send(HttpClient http, String url, List<HttpRequest> requests, Duration deadline)
            throws IOException {
        List<Reply> replies = new ArrayList<>();
        List<CompletableFuture<HttpResponse<Void>>> responses = new ArrayList<>();
        CompletableFuture<Object> failed = new CompletableFuture<>();
        try {
            for (HttpRequest request : requests) {
                Reply reply = new Reply(System.nanoTime());
                replies.add(reply);
                responses.add(http.sendAsync(request, BodyHandlers.fromLineSubscriber(reply))
                        .whenComplete((_, failure) -> {
                            if (failure != null) {
                                failed.completeExceptionally(failure);
                            }
                        }));
            }
            CompletableFuture<?> all = CompletableFuture.allOf(responses.toArray(CompletableFuture[]::new));
            CompletableFuture.anyOf(all, failed).get(deadline.toNanos(), TimeUnit.NANOSECONDS);
            for (int i = 0; i < requests.size(); i++) {
                int status = responses.get(i).resultNow().statusCode();
                if (status != 200) {
                    throw new RefusedException(
                            status,
                            url + " answered " + status + ": "
                                    + EndpointClient.shown(replies.get(i).text()));
                }
            }
            return replies;
        } catch (TimeoutException e) {
            throw EndpointClient.late(
                    url, deadline, replies.stream().map(Reply::soFar).collect(Collectors.joining(", ")), e);
        } catch (ExecutionException e) {
            throw new IOException(url + ": " + EndpointClient.why(e), e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException(url + ": interrupted", e);
        } finally {
            // Cancels the responses that have not ended.
            responses.forEach(response -> response.cancel(true));
        }
    }

    /** The lines of an answer and when they came. */
    private static final class Reply implements Flow.Subscriber<String> {
        private record Line(long at, String text) {}

        private final long sent;

        @GuardedBy("this")
        private final List<Line> lines = new ArrayList<>();

        Reply(long sent) {
            this.sent = sent;
        }

        @Override
        public void onSubscribe(Flow.Subscription subscription) {
            subscription.request(Long.MAX_VALUE);
        }

        @Override
        public synchronized void onNext(String line) {
            lines.add(new Line(System.nanoTime(), line));
        }

        @Override
        public void onError(Throwable failure) {
            // The response's future reports the failure.
        }

        @Override
        public void onComplete() {}

        synchronized String text() {
            return lines.stream().map(Line::text).collect(Collectors.joining("\n"));
        }

        synchronized String soFar() {
            long events = lines.stream()
                    .filter(line -> StreamedAnswer.isData(line.text))
                    .count();
            return events == 0 ? "nothing came" : events + " events came";
        }

        synchronized Answer answer(String url, int maxTokens) throws IOException {
            StreamedAnswer answer = new StreamedAnswer(Backend.OPENAI);
            lines.forEach(line -> answer.read(line.text, line.at));
            if (answer.error().isPresent()) {
                throw new IOException(url + " answered 200 and then: "
                        + EndpointClient.shown(answer.error().get()));
            }
            int said = answer.usage("/completion_tokens");
            List<Event> events = answer.events().stream()
                    .filter(event -> event.tokens() > 0)
                    .map(event -> new Event(event.at(), event.tokens()))
                    .toList();
            if (events.isEmpty() && said > 0) {
                // All of its tokens are without text: parts of characters, or ids without a text.
                events = answer.events().stream()
                        .filter(StreamedAnswer.Event::last)
                        .limit(1)
                        .map(event -> new Event(event.at(), said))
                        .toList();
            }
            if (events.isEmpty()) {
                throw new IOException(
                        url + " answered 200 without a streamed completion: " + EndpointClient.shown(text()));
            }
            double counted = events.stream().mapToDouble(Event::tokens).sum();
            double tokens = said > 0 ? said : counted;
            if (tokens < maxTokens) {
                throw new IOException(String.format(
                        Locale.ROOT,
                        "%s ended an answer after %.0f of %d tokens, ignore_eos was asked for",
                        url,
                        tokens,
                        maxTokens));
            }
            return new Answer(
                    sent,
                    events.stream()
                            .map(event -> new Event(event.at, event.tokens * tokens / counted))
                            .toList(),
                    answer.usage("/prompt_tokens"),
                    answer.usage("/prompt_tokens_details/cached_tokens"),
                    List.copyOf(answer.tokens()));
        }
    }
}
