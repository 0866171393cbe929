package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.server.FakeEngine.Session;
import baton.server.ServerFixture.RawClient;
import baton.testkit.Await;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.JsonNode;

/** A request that is too large gets an error and does not affect other requests. */
class LongTextTest {
    private static final int LONGEST_TOKEN = "<|assistant|>".length();
    private static final String SENTENCE = "Cora keeps the gold coin inside the green box. ";

    private final List<String> lines = new CopyOnWriteArrayList<>();

    @AutoClose
    private final ServerFixture fixture =
            new ServerFixture(config -> config.trustRequestChatTemplate(true).accessLog(lines::add));

    @ParameterizedTest
    @CsvSource(delimiter = '|', textBlock = """
            /v1/completions      | {"prompt":"
            /v1/completions      | {"prompt":["a","
            /v1/chat/completions | {"messages":[{"role":"user","content":"
            """)
    void aTextIsRefusedByItsLengthBeforeItIsEncoded(String path, String start) throws Exception {
        String text = SENTENCE.repeat(100_000);
        String end = start.contains("messages") ? "\"}]}" : start.contains("[") ? "\"]}" : "\"}";
        String message = message(400, fixture.post(path, start + text + end));
        assertThat(message)
                .startsWith(
                        "This model's maximum context length is 2048 tokens, output included, but the prompt has at least ");
        // This number is derived from the length alone: encoding would find more tokens.
        int least = Integer.parseInt(message.replaceAll("(?s).*at least (\\d+).*", "$1"));
        assertThat(least).isBetween(text.length() / LONGEST_TOKEN, text.length() / LONGEST_TOKEN + 20);
        assertThat(fixture.engine.submittedCount()).isZero();
    }

    @Test
    void aTruncatedTextIsEncodedOnlyWhereItIsKept() throws Exception {
        fixture.engine.answers("x");
        String text = SENTENCE.repeat(200_000);
        assertThat(fixture.post("/v1/completions", "{\"truncate_prompt_tokens\":7,\"prompt\":\"" + text + "\"}")
                        .statusCode())
                .isEqualTo(200);
        Session session = fixture.engine.nextSubmitted();
        int[] few = fixture.engine.tokenizer().encode(SENTENCE.repeat(3), true);
        int[] last = Arrays.copyOfRange(few, few.length - 7, few.length);
        last[0] = few[0];
        assertThat(session.request.prompt())
                .as("the BOS token and the end of the text")
                .isEqualTo(last);
    }

    @Test
    void tokenListsAreLimitedInLength() throws Exception {
        assertThat(message(400, fixture.post("/tokenize", "{\"prompt\":\"" + SENTENCE.repeat(600_000) + "\"}")))
                .startsWith("prompt: has at least 2169231 tokens, must have at most 1048576 here");
        // Allowed by its length but not by its tokens; encoding stops at the limit.
        String message = message(400, fixture.post("/tokenize", "{\"prompt\":\"" + SENTENCE.repeat(250_000) + "\"}"));
        int found = Integer.parseInt(message.replaceAll("(?s).*at least (\\d+).*", "$1"));
        assertThat(found).isBetween(1 << 20, (1 << 20) + 40_000);
        assertThat(message(400, fixture.post("/detokenize", "{\"tokens\":[" + "5,".repeat(1 << 20) + "5]}")))
                .isEqualTo("tokens: has 1048577 tokens, must have at most 1048576");
    }

    @Tag("thorough")
    @Test
    void otherRequestsAreAnsweredWhileLongTextsAreEncoded() throws Exception {
        String body = "{\"prompt\":\"" + SENTENCE.repeat(200_000) + "\"}";
        List<CompletableFuture<HttpResponse<String>>> large = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            large.add(ask(fixture, "/tokenize", body));
        }
        until("one is read and being encoded", () -> fixture.server.preparingBytes() > 6L * body.length());
        assertThat(fixture.get("/health").statusCode()).isEqualTo(200);
        assertThat(large).noneMatch(CompletableFuture::isDone);
        for (CompletableFuture<HttpResponse<String>> answer : large) {
            assertThat(answer.get(60, TimeUnit.SECONDS).statusCode()).isEqualTo(400);
        }
        until("all is given back", () -> fixture.server.preparingBytes() == 0);
    }

    /** The tokenizer is requested twice before the text is encoded, then once for each token. */
    private static final String LISTED = "{\"prompt\":\"a b c d e f g h\",\"return_token_strs\":true}";

    @Test
    void preparationEndsAtItsDeadline() throws Exception {
        AtomicInteger taken = new AtomicInteger();
        CountDownLatch answered = new CountDownLatch(1);
        try (ServerFixture impatient =
                new ServerFixture(config -> config.accessLog(line -> {}).prepareTimeout(Duration.ofMillis(100)))) {
            impatient.engine.whenTokenizerIsTaken(() -> {
                taken.incrementAndGet();
                await(answered);
            });
            HttpResponse<String> late = impatient.post("/tokenize", LISTED);
            assertThat(message(503, late)).contains("not read and encoded within 0 s");
            assertThat(late.headers().firstValue("Retry-After")).contains("1");
            assertThat(impatient.server.preparingBytes()).isPositive();
            answered.countDown();
            until("all is given back", () -> impatient.server.preparingBytes() == 0);
            assertThat(taken.get()).isLessThanOrEqualTo(2);
            until("it lives on", () -> impatient.post("/tokenize", LISTED).statusCode() == 200);
            assertThat(taken.get()).isGreaterThan(4);
        }
    }

    @Test
    void preparationEndsAfterAClientDisconnect() throws Exception {
        AtomicInteger taken = new AtomicInteger();
        CountDownLatch gone = new CountDownLatch(1);
        fixture.engine.whenTokenizerIsTaken(() -> {
            taken.incrementAndGet();
            await(gone);
        });
        try (RawClient client = fixture.raw()) {
            client.post("/tokenize", LISTED);
            until("it is being prepared", () -> taken.get() > 0);
            client.leave();
        }
        until("that is noticed", () -> !lines.isEmpty());
        assertThat(fixture.server.preparingBytes()).isPositive();
        gone.countDown();
        until("all is given back", () -> fixture.server.preparingBytes() == 0);
        assertThat(taken.get()).isEqualTo(2);
        assertThat(fixture.post("/tokenize", LISTED).statusCode()).isEqualTo(200);
    }

    @Test
    void preparationMemoryIsReleasedAfterAnOutOfMemoryError() throws Exception {
        fixture.engine.whenTokenizerIsTaken(() -> {
            throw new OutOfMemoryError("a test's");
        });
        assertThat(message(500, fixture.post("/tokenize", LISTED))).contains("OutOfMemoryError");
        assertThat(fixture.server.preparingBytes()).isZero();
        fixture.engine.whenTokenizerIsTaken(() -> {});
        assertThat(fixture.post("/tokenize", LISTED).statusCode()).isEqualTo(200);
    }

    @Test
    void memoryOfATokenListIsHeldUntilItIsSent() throws Exception {
        String body = "{\"return_token_strs\":true,\"prompt\":\"" + SENTENCE.repeat(40_000) + "\"}";
        try (ServerFixture impatient =
                        new ServerFixture(config -> config.accessLog(line -> {}).bodyTimeout(Duration.ofSeconds(4)));
                RawClient reading = fixture.raw();
                RawClient leaving = fixture.raw();
                RawClient slow = impatient.raw()) {
            for (RawClient client : List.of(reading, leaving, slow)) {
                client.socket().setReceiveBufferSize(16 << 10);
                client.post("/tokenize", body);
            }
            int answer = contentLength(reading.head());
            assertThat(contentLength(leaving.head())).isEqualTo(answer);
            assertThat(fixture.server.preparingBytes()).isEqualTo(2L * answer);
            reading.skip(answer);
            until("one is given back", () -> fixture.server.preparingBytes() == answer);
            leaving.leave();
            until("all is given back", () -> fixture.server.preparingBytes() == 0);
            assertThat(contentLength(slow.head())).isEqualTo(answer);
            until("it is not waited for", () -> impatient.server.preparingBytes() == 0);
        }
    }

    @Test
    void preparationMemoryDependsOnTheHeap() {
        assertThat(ServerConfig.preparingBytes(1L << 30)).isEqualTo(256 << 20);
        assertThat(ServerConfig.preparingBytes(1L << 40)).isEqualTo(512 << 20);
        assertThat(ServerConfig.of("a").build().maxPreparingBytes())
                .isEqualTo(ServerConfig.preparingBytes(Runtime.getRuntime().maxMemory()));
    }

    @Test
    void memoryOfAllBodiesIsLimited() throws Exception {
        int limit = 16 << 20;
        String part = "x".repeat(2_500_000);
        try (ServerFixture small =
                        new ServerFixture(config -> config.accessLog(line -> {}).maxPreparingBytes(limit));
                RawClient first = small.raw();
                RawClient second = small.raw();
                RawClient third = small.raw()) {
            String head =
                    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4000000\r\n\r\n";
            first.send(head + part);
            second.send(head + part);
            until("two are held", () -> small.server.preparingBytes() == 4L * part.length());
            third.send(head + part);
            String refused = third.head();
            assertThat(refused).startsWith("HTTP/1.1 503 ").containsIgnoringCase("retry-after: 1");
            assertThat(small.server.preparingBytes()).isLessThanOrEqualTo(limit);
            // A small request finds room nevertheless.
            small.engine.answers("x");
            assertThat(small.post("/v1/completions", "{\"prompt\":\"a\"}").statusCode())
                    .isEqualTo(200);
            first.leave();
            second.leave();
            until("all is given back", () -> small.server.preparingBytes() == 0);
            // A short text that needs much memory.
            assertThat(message(413, small.post("/v1/completions", "{\"prompt\":[" + "[],".repeat(50_000) + "[]]}")))
                    .startsWith("the request would take ");
            assertThat(small.post("/v1/completions", "{\"prompt\":\"a\"}").statusCode())
                    .isEqualTo(200);
        }
    }

    @Test
    void aTextWithoutCutsNeedsMemoryForItsWholeLength() throws Exception {
        try (ServerFixture small =
                new ServerFixture(config -> config.accessLog(line -> {}).maxPreparingBytes(64 << 20))) {
            assertThat(message(400, small.post("/tokenize", "{\"prompt\":\"" + "x".repeat(1_000_000) + "\"}")))
                    .startsWith("prompt: has 1000000 characters without a place to cut them, must have at most 1");
            assertThat(small.server.preparingBytes()).isZero();
            // Only the end of a prompt to be truncated is encoded.
            small.engine.answers("x");
            assertThat(small.post(
                                    "/v1/completions",
                                    "{\"truncate_prompt_tokens\":7,\"prompt\":\"" + "x".repeat(1_000_000) + ". "
                                            + SENTENCE.repeat(10) + "\"}")
                            .statusCode())
                    .isEqualTo(200);
        }
    }

    @Test
    void chatTemplatesAreLimitedInSizeAndTime() throws Exception {
        String chat = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chat_template\":\"";
        assertThat(message(400, fixture.post("/v1/chat/completions", chat + "{{1}}".repeat(1_000_000) + "\"}")))
                .isEqualTo("chat_template: has 5000000 characters, must have at most 262144");
        assertThat(
                        message(
                                400,
                                fixture.post(
                                        "/v1/chat/completions",
                                        chat
                                                + "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}\"}")))
                .contains("takes more than 2000000 steps");
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', textBlock = """
            {"prompt":"a","stop":["@"*2000]}                      | stop            | stop: has 2000 strings of 2000 characters, must have at most 1024 of 32768 together
            {"prompt":"a","stop":"$"}                             | stop            | stop: has 1 strings of 40000 characters, must have at most 1024 of 32768 together
            {"prompt":"a","n":4000,"temperature":1,"stop":["@"*1000]} | stop        | stop: has 1000 strings for 4000 sequences, must have fewer or shorter ones for so many
            {"prompt":"a","bad_words":["@"*2000]}                 | bad_words       | bad_words: has 2000 strings of 2000 characters, must have at most 1024 of 32768 together
            {"prompt":"a","cache_salt":"$"}                       | cache_salt      | cache_salt: has 40000 characters, must have at most 4096
            {"prompt":[#],"prompt_logprobs":20}                   | prompt_logprobs | prompt_logprobs: is 20 for prompts of 500000 tokens together, a request may have 8388608 log probabilities
            """)
    void stringsAndSequencesForTheEngineAreLimited(String pattern, String param, String message) throws Exception {
        String body = pattern.replace("\"@\"*2000", "\"a\",".repeat(1999) + "\"a\"")
                .replace("\"@\"*1000", "\"a\",".repeat(999) + "\"a\"")
                .replace("$", "x".repeat(40_000))
                .replace("#", ("[" + "5,".repeat(1999) + "5],").repeat(250).replaceAll(",$", ""));
        HttpResponse<String> response = fixture.post("/v1/completions", body);
        assertThat(message(400, response)).isEqualTo(message);
        assertThat(ServerFixture.json(response).at("/error/param").asString()).isEqualTo(param);
    }

    @Test
    void errorMessagesAreLimitedInLength() throws Exception {
        String long_ = "x".repeat(1_000_000);
        HttpResponse<String> response =
                fixture.post("/v1/completions", "{\"prompt\":\"a\",\"response_format\":{\"type\":\"" + long_ + "\"}}");
        assertThat(response.statusCode()).isEqualTo(400);
        assertThat(response.body().length()).isLessThan(1500);
        until("the access log has it", () -> !lines.isEmpty());
        assertThat(lines.getFirst().length()).isLessThan(1500);
    }

    private static CompletableFuture<HttpResponse<String>> ask(ServerFixture fixture, String path, String body) {
        return fixture.client.sendAsync(
                HttpRequest.newBuilder(fixture.uri(path))
                        .header("Content-Type", "application/json")
                        .POST(HttpRequest.BodyPublishers.ofString(body))
                        .build(),
                HttpResponse.BodyHandlers.ofString());
    }

    private static int contentLength(String head) {
        return Integer.parseInt(head.replaceAll("(?is).*content-length: (\\d+).*", "$1"));
    }

    private static void await(CountDownLatch latch) {
        try {
            assertThat(latch.await(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS))
                    .isTrue();
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    private static String message(int status, HttpResponse<String> response) {
        JsonNode error = ServerFixture.json(response).get("error");
        assertThat(response.statusCode()).as("%s", error).isEqualTo(status);
        return error.get("message").asString();
    }

    private static void until(String what, Callable<Boolean> condition) {
        Await.until(what, ServerFixture.SOON, condition);
    }
}
