package baton.bench.serve;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.bench.serve.LoadGenerator.Schedule;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpServer;
import io.vertx.core.http.HttpServerRequest;
import io.vertx.core.http.HttpServerResponse;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.Queue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.JsonNodeFactory;

/** Against a server that sends its first token after a time, and each further one after another. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
class LoadGeneratorTest {
    private static final int FIRST_MILLIS = 60;
    private static final int EACH_MILLIS = 20;
    /** Requests that are answered when all of them have arrived. */
    private static final int HELD = 20;

    private static final Duration PATIENCE = Duration.ofMinutes(2);

    private final Vertx vertx = Vertx.vertx();
    private final Queue<JsonNode> bodies = new ConcurrentLinkedQueue<>();
    private final Queue<String> authorizations = new ConcurrentLinkedQueue<>();
    /** Responses held on the server's event loop. */
    private final List<HttpServerResponse> held = new ArrayList<>();

    private final AtomicInteger active = new AtomicInteger();
    private final AtomicInteger mostActive = new AtomicInteger();
    private LoadGenerator generator;
    private String url;

    @BeforeAll
    void start() throws Exception {
        HttpServer server = vertx.createHttpServer()
                .requestHandler(request -> request.bodyHandler(bytes -> {
                    JsonNode body = JsonMapper.builder().build().readTree(bytes.toString());
                    bodies.add(body);
                    authorizations.add(String.valueOf(request.getHeader("Authorization")));
                    mostActive.accumulateAndGet(active.incrementAndGet(), Math::max);
                    answer(request, body);
                }));
        int port = server.listen(0, "127.0.0.1")
                .toCompletionStage()
                .toCompletableFuture()
                .get(60, TimeUnit.SECONDS)
                .actualPort();
        url = "http://127.0.0.1:" + port;
        generator = new LoadGenerator(false, PATIENCE);
    }

    @AfterAll
    void stop() throws Exception {
        generator.close();
        vertx.close().toCompletionStage().toCompletableFuture().get(60, TimeUnit.SECONDS);
    }

    private void answer(HttpServerRequest request, JsonNode body) {
        HttpServerResponse response = request.response();
        switch (body.path("prompt").asString("")) {
            case "refused" -> end(response.setStatusCode(429), "busy now");
            case "silent" -> {}
            case "broken" -> {
                response.setChunked(true);
                write(response, event("x"));
                vertx.setTimer(EACH_MILLIS, _ -> {
                    active.decrementAndGet();
                    var _ = request.connection().close();
                });
            }
            case "error" -> {
                response.setChunked(true);
                write(response, event("x"));
                end(response, "data: {\"error\": {\"message\": \"engine died\"}}\n\ndata: [DONE]\n\n");
            }
            case "empty" -> end(response, "data: [DONE]\n\n");
            case "held" -> {
                response.setChunked(true);
                held.add(response);
                if (held.size() == HELD) {
                    held.forEach(each -> token(each, 3, 3));
                    held.clear();
                }
            }
            default -> {
                response.setChunked(true);
                vertx.setTimer(FIRST_MILLIS, _ -> token(response, tokens(body), tokens(body)));
            }
        }
    }

    private static int tokens(JsonNode body) {
        return body.has("messages")
                ? body.path("max_completion_tokens").asInt()
                : body.path("max_tokens").asInt();
    }

    private void token(HttpServerResponse response, int left, int all) {
        if (left == 0) {
            String usage = "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 7, \"completion_tokens\": %d}}\n\n";
            // A comment, CR LF, and an event in two pieces.
            write(response, ": ping\n\n");
            write(response, usage.formatted(all).substring(0, 20));
            end(response, usage.formatted(all).substring(20) + "data: [DONE]\r\n\r\n");
            return;
        }
        write(response, event("né "));
        vertx.setTimer(EACH_MILLIS, _ -> token(response, left - 1, all));
    }

    private static String event(String text) {
        return "data: {\"choices\": [{\"text\": \"%s\", \"delta\": {\"content\": \"%s\"}}]}\n\n".formatted(text, text);
    }

    private static void write(HttpServerResponse response, String text) {
        var _ = response.write(Buffer.buffer(text));
    }

    private void end(HttpServerResponse response, String text) {
        active.decrementAndGet();
        var _ = response.end(text);
    }

    private Endpoint endpoint(Backend backend) {
        return new Endpoint(backend, url, backend.path(), Map.of("Authorization", "Bearer k"), false);
    }

    private static Sample sample(String prompt, int tokens) {
        return new Sample(JsonNodeFactory.instance.stringNode(prompt), 5, tokens);
    }

    private Exchange ask(String prompt) throws IOException {
        return generator.ask(endpoint(Backend.OPENAI), RequestBody.greedy(Backend.OPENAI, "m"), sample(prompt, 4));
    }

    @Test
    void noRequestIsLostToConnectionsThatEndWhenTheNextOneArrives() throws Exception {
        ConcurrentHashMap<Object, Integer> requests = new ConcurrentHashMap<>();
        AtomicInteger closed = new AtomicInteger();
        int port = vertx.createHttpServer()
                .requestHandler(request -> request.bodyHandler(_ -> {
                    if (requests.merge(request.connection(), 1, Integer::sum) == 1) {
                        var _ = request.response().setChunked(true).end(event("x") + "data: [DONE]\n\n");
                    } else {
                        closed.incrementAndGet();
                        var _ = request.connection().close();
                    }
                }))
                .listen(0, "127.0.0.1")
                .toCompletionStage()
                .toCompletableFuture()
                .get(60, TimeUnit.SECONDS)
                .actualPort();
        int count = 1000;
        Sample sample = new Sample(JsonNodeFactory.instance.stringNode("x"), 1, 1);
        Metrics metrics = generator.run(
                Endpoint.of(Backend.OPENAI, "http://127.0.0.1:" + port),
                RequestBody.greedy(Backend.OPENAI, "x"),
                new Schedule(
                        IntStream.range(0, count).mapToObj(_ -> sample).toList(), new double[count], OptionalInt.of(8)),
                _ -> {});
        assertThat(metrics.exchanges())
                .hasSize(count)
                .allSatisfy(each -> assertThat(each.error()).isEmpty());
        assertThat(closed.get()).isGreaterThan(count / 3);
    }

    @Test
    void timesAreThoseOfTheServer() throws Exception {
        Exchange answer = ask("a");
        assertThat(answer.error()).isEmpty();
        assertThat(answer.between()).hasSize(3);
        assertThat(answer.first()).isGreaterThanOrEqualTo(TimeUnit.MILLISECONDS.toNanos(FIRST_MILLIS - 1));
        assertThat(answer.latency())
                .isGreaterThanOrEqualTo(TimeUnit.MILLISECONDS.toNanos(FIRST_MILLIS + 3 * EACH_MILLIS - 3));
        assertThat(answer.promptTokens()).isEqualTo(7);
        assertThat(answer.tokens()).isEqualTo(4);
        assertThat(answer.text()).isEqualTo("né né né né ");
    }

    @Test
    void requestsHaveTheFieldsOfVllmsBenchServe() throws Exception {
        bodies.clear();
        var _ = ask("fields");
        JsonNode body = bodies.remove();
        assertThat(body.propertyNames())
                .containsExactlyInAnyOrder(
                        "model",
                        "prompt",
                        "repetition_penalty",
                        "max_tokens",
                        "logprobs",
                        "stream",
                        "stream_options",
                        "ignore_eos",
                        "temperature");
        assertThat(body.path("stream_options").path("include_usage").asBoolean())
                .isTrue();
        assertThat(authorizations).contains("Bearer k");
        RequestBody chat = new RequestBody(
                Backend.OPENAI_CHAT,
                "m",
                false,
                OptionalInt.empty(),
                Map.of("top_k", JsonNodeFactory.instance.numberNode(3)));
        Exchange answer = generator.ask(endpoint(Backend.OPENAI_CHAT), chat, sample("hello", 2));
        assertThat(answer.text()).isEqualTo("né né ");
        body = bodies.remove();
        assertThat(body.propertyNames())
                .containsExactlyInAnyOrder(
                        "model", "messages", "max_completion_tokens", "stream", "stream_options", "top_k");
        assertThat(body.at("/messages/0/content/0/text").asString()).isEqualTo("hello");
    }

    @Test
    void failuresAreReportedAndTheRestGoesOn() throws Exception {
        List<String> prompts = List.of("refused", "a", "broken", "error", "empty", "b");
        List<Sample> samples = prompts.stream().map(each -> sample(each, 2)).toList();
        List<Exchange> answers = generator
                .run(
                        endpoint(Backend.OPENAI),
                        RequestBody.greedy(Backend.OPENAI, "m"),
                        new Schedule(samples, new double[6], OptionalInt.of(1)),
                        _ -> {})
                .exchanges();
        assertThat(answers.stream().map(Exchange::succeeded)).containsExactly(false, true, false, false, false, true);
        assertThat(answers.get(0).error()).hasValue("HTTP 429: busy now");
        assertThat(answers.get(2).error())
                .hasValueSatisfying(why -> assertThat(why).containsIgnoringCase("closed"));
        assertThat(answers.get(3).error())
                .hasValueSatisfying(why -> assertThat(why).contains("engine died"));
        assertThat(answers.get(4).error())
                .hasValueSatisfying(why -> assertThat(why).contains("no event"));
    }

    @Test
    void anAnswerThatDoesNotComeEndsAtItsDeadline() throws Exception {
        try (LoadGenerator impatient = new LoadGenerator(false, Duration.ofMillis(100))) {
            Exchange answer = impatient.ask(
                    endpoint(Backend.OPENAI), RequestBody.greedy(Backend.OPENAI, "m"), sample("silent", 2));
            assertThat(answer.error()).hasValueSatisfying(why -> assertThat(why).contains("did not end within"));
        }
    }

    @Test
    void aServerThatIsNotThereIsAFailureOfTheRequest() throws Exception {
        Exchange answer = generator.ask(
                Endpoint.of(Backend.OPENAI, "http://127.0.0.1:1"),
                RequestBody.greedy(Backend.OPENAI, "m"),
                sample("a", 2));
        assertThat(answer.error()).hasValueSatisfying(why -> assertThat(why).contains("refused"));
    }

    @Test
    void requestsAreSentAtTheirTimesWhetherAnswersComeOrNot() throws Exception {
        double[] due = IntStream.range(0, HELD).mapToDouble(i -> i * 0.003).toArray();
        List<Sample> samples =
                IntStream.range(0, HELD).mapToObj(_ -> sample("held", 3)).toList();
        List<Exchange> answers = run(samples, due, OptionalInt.empty());
        for (int i = 0; i < HELD; i++) {
            assertThat(answers.get(i).due() - answers.getFirst().due()).isEqualTo(Math.round(i * 0.003 * 1e9));
            assertThat(answers.get(i).sent())
                    .isGreaterThanOrEqualTo(answers.get(i).due());
        }
    }

    @Test
    void noMoreRequestsAreUnderWayThanAllowedAndWaitingShowsInFiguresFromDue() throws Exception {
        mostActive.set(0);
        List<Sample> samples =
                IntStream.range(0, 6).mapToObj(i -> sample("c" + i, 2)).toList();
        List<Exchange> answers = run(samples, new double[6], OptionalInt.of(2));
        assertThat(mostActive).hasValueLessThanOrEqualTo(2);
        Exchange last = answers.getLast();
        // Two answers came before it was sent.
        long waited = TimeUnit.MILLISECONDS.toNanos(2 * (FIRST_MILLIS + EACH_MILLIS) - 4);
        assertThat(last.sent() - last.arrived()).isGreaterThan(waited);
        assertThat(last.late()).isGreaterThan(waited);
        assertThat(new Metrics(answers, 1).ttftFromDue().getMaxValue() * 1000).isGreaterThan(waited + last.first() / 2);
    }

    private List<Exchange> run(List<Sample> samples, double[] due, OptionalInt most) throws IOException {
        AtomicInteger done = new AtomicInteger();
        List<Exchange> answers = generator
                .run(
                        endpoint(Backend.OPENAI),
                        RequestBody.greedy(Backend.OPENAI, "m"),
                        new Schedule(samples, due, most),
                        done::set)
                .exchanges();
        assertThat(done).hasValue(samples.size());
        assertThat(answers).allMatch(Exchange::succeeded);
        return answers;
    }

    @Test
    void aMalformedEndpointIsRefusedByName() {
        assertThatThrownBy(() -> Endpoint.of(Backend.OPENAI, "127.0.0.1:80")).hasMessageContaining("base-url");
        assertThatThrownBy(() -> new Endpoint(Backend.OPENAI_CHAT, url, "/v1/completions", Map.of(), false))
                .hasMessageContaining("endpoint")
                .hasMessageContaining("chat/completions");
        assertThatThrownBy(() -> Backend.parse("backend", "tgi")).hasMessageContaining("openai-chat");
    }
}
