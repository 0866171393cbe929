package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.bench.StubServer.Completions;
import baton.bench.frame.Budget;
import baton.kv.ConfigException;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Predicate;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/** Against servers that are not as they should be, and that answer as slowly as is known. */
@Tag("thorough")
class AgainstBenchTest {
    private static final Path TINY_LEDGER = Path.of(System.getProperty("baton.root", ".."), "models", "tiny-ledger");
    private static final Duration DEADLINE = Duration.ofMinutes(2);
    /** The budget of runs that a server ends by not answering: on a busy machine the cases before it take seconds. */
    private static final Duration HANGING_BUDGET = Duration.ofSeconds(15);

    private static JsonNode run(Completions baton, Completions other) throws IOException {
        try (StubServer first = new StubServer(baton);
                StubServer second = new StubServer(other)) {
            return run(first.url(), second.url(), Duration.ofMinutes(2));
        }
    }

    private static JsonNode run(String baton, String other, Duration budget) throws IOException {
        CompletionsClient first = CompletionsClient.connect("baton", baton, Optional.empty(), DEADLINE);
        CompletionsClient second = CompletionsClient.connect("against", other, Optional.of("m"), DEADLINE);
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        new AgainstBench(Budget.of(budget), Optional.of(Duration.ofMillis(50)), _ -> {})
                .run(TINY_LEDGER, first, second, json);
        return json;
    }

    private static List<String> cases(JsonNode report) {
        return report.path("cases")
                .valueStream()
                .map(each ->
                        each.path("case").asString() + " " + each.path("count").asInt())
                .toList();
    }

    private static List<String> leftOut(JsonNode report) {
        return report.path("left_out").valueStream().map(JsonNode::asString).toList();
    }

    @Test
    void theSlowerServersTimesAreTheLongerOnes() throws IOException {
        List<JsonNode> seen = new ArrayList<>();
        Completions slow = StubServer.tokens(Duration.ofMillis(60));
        JsonNode report = run(StubServer.tokens(Duration.ofMillis(2)), (request, reply) -> {
            synchronized (seen) {
                seen.add(request);
            }
            slow.answer(request, reply);
        });

        // The checkpoint has 2,048 positions, and the last of them is for the token after the prompt.
        assertThat(cases(report)).containsExactly("prefill 128", "prefill 512", "prefill 2047", "decode 1", "decode 8");
        assertThat(leftOut(report))
                .singleElement()
                .asString()
                .contains("prefill 2048", "max_position_embeddings=2048", "prompts of 2047 instead");
        assertThat(report.path("cases")).allSatisfy(each -> {
            assertThat(each.path("ratio").asDouble()).isGreaterThan(1.5);
            assertThat(each.at("/other/best_seconds").asDouble()).isGreaterThanOrEqualTo(0.06);
            assertThat(each.at("/other/repetitions").asInt()).isGreaterThanOrEqualTo(2);
        });
        assertThat(report.at("/cases/1/other/tokens").asInt()).isEqualTo(512);
        // Every prompt is another one, within the vocabulary, and ends at its limit.
        assertThat(seen).doesNotHaveDuplicates().allSatisfy(request -> {
            assertThat(request.path("prompt").valueStream().mapToInt(JsonNode::asInt))
                    .allMatch(id -> id >= 0 && id < 2048);
            assertThat(request.path("ignore_eos").asBoolean()).isTrue();
            assertThat(request.path("stream").asBoolean()).isTrue();
            assertThat(request.path("model").asString()).isEqualTo("m");
        });
        ObjectNode figures = JsonNodeFactory.instance.objectNode();
        figures.set("against", report);
        assertThat(EngineBench.FIGURES.text(figures))
                .contains(
                        "Against " + report.path("url").asString(),
                        "token ids",
                        "prefill 2047",
                        "decode batch 8",
                        "while all of them decode")
                .doesNotContain("NaN", "Infinity");
        assertThat(report.at("/cases/4/other/tokens").asInt()).isEqualTo(8);
    }

    @Test
    void aServerThatTakesNoTokenIdsIsSentText() throws IOException {
        Completions tokens = StubServer.tokens(Duration.ofMillis(1));
        JsonNode report = run(tokens, (request, reply) -> {
            if (request.path("prompt").isArray()) {
                reply.whole(400, "{\"error\": \"prompt must be a string\"}");
            } else {
                tokens.answer(request, reply);
            }
        });

        assertThat(report.path("prompts").asString()).isEqualTo("text");
        assertThat(report.path("cases")).hasSize(5);
    }

    @Test
    void aCaseThatIsRefusedIsNamedAndTheOtherCasesAreMeasured() throws IOException {
        Completions tokens = StubServer.tokens(Duration.ofMillis(1));
        JsonNode report = run(tokens, (request, reply) -> {
            if (request.path("prompt").size() > 1000) {
                reply.whole(400, "{\"error\": \"longer than my 1000\"}");
            } else {
                tokens.answer(request, reply);
            }
        });

        assertThat(cases(report)).containsExactly("prefill 128", "prefill 512", "decode 1", "decode 8");
        assertThat(leftOut(report).getLast())
                .contains("prefill 2047", report.path("url").asString(), "answered 400", "longer than my 1000");
    }

    @Test
    void aTokenWithoutTextIsCounted() throws IOException {
        Completions tokens = StubServer.tokens(Duration.ofMillis(1));
        JsonNode report = run(tokens, (request, reply) -> {
            if (request.path("max_tokens").asInt() > 1) {
                tokens.answer(request, reply);
                return;
            }
            reply.begin();
            reply.event("{\"choices\": [{\"text\": \"\", \"finish_reason\": \"length\"}]}");
            reply.event("{\"choices\": [], \"usage\": {\"prompt_tokens\": 9, \"completion_tokens\": 1}}");
            reply.event("[DONE]");
        });

        assertThat(report.path("cases")).hasSize(5);
        assertThat(report.at("/cases/0/other/tokens").asInt()).isEqualTo(9);
    }

    @Test
    void aServerThatDecodesOneAfterTheOtherIsNamed() throws IOException {
        Completions tokens = StubServer.tokens(Duration.ofMillis(1));
        Object turn = new Object();
        JsonNode report = run(tokens, (request, reply) -> {
            synchronized (turn) {
                tokens.answer(request, reply);
            }
        });

        assertThat(report.path("cases")).hasSize(4);
        assertThat(leftOut(report).getLast())
                .contains("decode batch 8", report.path("url").asString(), "never decoded all 8 requests at once");
    }

    @Test
    void theAnswerOfAFailingServerIsReported() {
        Completions tokens = StubServer.tokens(Duration.ofMillis(1));
        assertThatThrownBy(() -> run(tokens, (_, reply) -> reply.whole(500, "out of\norder")))
                .isInstanceOf(IOException.class)
                .hasMessageMatching("http://127.0.0.1:\\d+/v1/completions answered 500: out of order");
        assertThatThrownBy(() -> run((_, reply) -> reply.whole(503, ""), tokens))
                .hasMessageEndingWith("/v1/completions answered 503: nothing");
        assertThatThrownBy(() -> run(tokens, (_, reply) -> reply.whole(200, "{\"choices\": []}")))
                .hasMessageContainingAll("answered 200 without a streamed completion", "choices");
        assertThatThrownBy(() -> run(tokens, (_, reply) -> {
                    reply.begin();
                    reply.event("{\"error\": \"no more memory\"}");
                }))
                .hasMessageContainingAll("answered 200 and then", "no more memory");
        assertThatThrownBy(() -> run(tokens, (_, reply) -> {
                    reply.begin();
                    reply.event("{\"choices\": ");
                }))
                .hasMessageContaining("an event that is no JSON");
        assertThatThrownBy(() -> run(tokens, (request, reply) -> {
                    if (request.path("max_tokens").asInt() == 1) {
                        tokens.answer(request, reply);
                    } else {
                        reply.begin();
                        reply.event("{\"choices\": [{\"text\": \"x\", \"finish_reason\": \"stop\"}]}");
                    }
                }))
                .hasMessageContaining("ended an answer after 1 of 8 tokens");
    }

    @Test
    void aServerThatHangsIsNotWaitedForLongerThanTheBudget() throws IOException {
        CountDownLatch end = new CountDownLatch(1);
        try (StubServer other = new StubServer((_, _) -> {
                    try {
                        end.await();
                    } catch (InterruptedException e) {
                        Thread.currentThread().interrupt();
                    }
                });
                StubServer baton = new StubServer(StubServer.tokens(Duration.ofMillis(1)))) {
            long start = System.nanoTime();
            try {
                assertThatThrownBy(() -> run(baton.url(), other.url(), Duration.ofSeconds(2)))
                        .isInstanceOf(IOException.class)
                        .hasMessageMatching(
                                "http://127.0.0.1:\\d+/v1/completions has not answered within \\d\\.\\d s: nothing came");
                assertThat(Duration.ofNanos(System.nanoTime() - start)).isLessThan(Duration.ofSeconds(60));
            } finally {
                end.countDown();
            }
        }
    }

    @Test
    void aCaseThatDoesNotEndWithinTheBudgetIsNamedAndThoseBeforeItAreReported() throws IOException {
        CountDownLatch end = new CountDownLatch(1);
        Completions tokens = StubServer.tokens(Duration.ofMillis(1));
        try (StubServer baton = new StubServer(tokens);
                StubServer other = new StubServer(waiting(
                        tokens, end, request -> request.path("max_tokens").asInt() > 1))) {
            try {
                JsonNode report = run(baton.url(), other.url(), HANGING_BUDGET);
                assertThat(cases(report)).isNotEmpty().allMatch(each -> each.startsWith("prefill"));
                assertThat(leftOut(report))
                        .anyMatch(line -> line.contains("decode batch 1") && line.contains("has not answered within"));
            } finally {
                end.countDown();
            }
        }
    }

    /** Answers such requests when {@code end} has come, all other ones at once. */
    private static Completions waiting(Completions answers, CountDownLatch end, Predicate<JsonNode> such) {
        return (request, reply) -> {
            try {
                if (such.test(request)) {
                    end.await();
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            answers.answer(request, reply);
        };
    }

    @Test
    void measurementsBeforeALateAnswerAreReported() throws IOException {
        CountDownLatch end = new CountDownLatch(1);
        AtomicInteger decodes = new AtomicInteger();
        Completions tokens = StubServer.tokens(Duration.ofMillis(1));
        try (StubServer baton = new StubServer(tokens);
                StubServer other = new StubServer(waiting(
                        tokens,
                        end,
                        request -> request.path("max_tokens").asInt() > 1 && decodes.incrementAndGet() > 1))) {
            try {
                JsonNode report = run(baton.url(), other.url(), HANGING_BUDGET);
                assertThat(cases(report)).endsWith("decode 1");
                assertThat(report.path("cases")
                                .path(report.path("cases").size() - 1)
                                .at("/other/repetitions")
                                .asInt())
                        .isEqualTo(1);
                assertThat(leftOut(report))
                        .anyMatch(line ->
                                line.contains("has not answered within") && line.endsWith("earlier measurements count"))
                        .anyMatch(line -> line.contains("decode batch 8"));
            } finally {
                end.countDown();
            }
        }
    }

    @Test
    void aServerThatClosesConnectionsIsNamed() throws Exception {
        try (ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            Thread closing = Thread.ofPlatform().start(() -> {
                try {
                    while (true) {
                        try (Socket socket = server.accept()) {
                            // The server does not read its requests.
                        }
                    }
                } catch (IOException e) {
                    // The end of the test.
                }
            });
            String url = "http://127.0.0.1:" + server.getLocalPort();
            assertThatThrownBy(() -> CompletionsClient.connect("against", url, Optional.empty(), DEADLINE))
                    .isInstanceOf(IOException.class)
                    .hasMessageStartingWith(url + "/v1/models: the connection broke: ");
            server.close();
            closing.join(DEADLINE);
            assertThatThrownBy(() -> CompletionsClient.connect("against", url, Optional.empty(), DEADLINE))
                    .hasMessageStartingWith(url + "/v1/models: the connection is refused");
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"127.0.0.1:8000", "ftp://127.0.0.1", "http:///v1", "http://a b", "http://h?x=1", ""})
    void urlsThatAreNone(String url) {
        assertThatThrownBy(() -> CompletionsClient.connect("against", url, Optional.of("m"), DEADLINE))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll("against: ", "'" + url + "'", "http://127.0.0.1:8000");
    }

    @Test
    void theModelIsTheFirstThatTheServerHas() throws IOException {
        try (StubServer server = new StubServer(StubServer.tokens(Duration.ofMillis(1)))) {
            CompletionsClient client =
                    CompletionsClient.connect("against", server.url() + "/v1/", Optional.empty(), DEADLINE);
            assertThat(client.model()).isEqualTo("m");
            assertThat(client.url()).isEqualTo(server.url());
        }
    }
}
