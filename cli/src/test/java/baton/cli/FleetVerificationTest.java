package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.FleetVerification.Finding;
import baton.cli.FleetVerification.Result;
import baton.cli.FleetVerification.Situation;
import baton.cli.Instances.Instance;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.Optional;
import java.util.function.BiFunction;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.JsonNode;

class FleetVerificationTest {
    private static final int PROMPTS = 4;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    /**
     * An answer: a token and, if there are two, one more that is always the same.
     *
     * @param margin from the token's log probability to that of the second best one
     */
    private record Said(String token, double logprob, double margin, int tokens) {
        Said(String token, double logprob, double margin) {
            this(token, logprob, margin, 2);
        }

        Said cutTo(int count) {
            return new Said(token, logprob, margin, count);
        }

        String json() {
            if (tokens == 0) {
                return "{\"choices\":[{\"text\":\"\"}]}";
            }
            return "{\"choices\":[{\"text\":\"x\",\"logprobs\":{\"tokens\":[\"%s\"%s],\"token_logprobs\":[%s%s],\"top_logprobs\":[{\"%s\":%s,\"other\":%s}%s]}}]}"
                    .formatted(
                            token,
                            ifTwo(",\"end\""),
                            logprob,
                            ifTwo(",-1"),
                            token,
                            logprob,
                            logprob - margin,
                            ifTwo(",{\"end\":-1,\"other\":-5}"));
        }

        private String ifTwo(String second) {
            return tokens == 2 ? second : "";
        }
    }

    private static final Said REFUSED = new Said("refused", 0, 0);

    private static Said right(String prompt) {
        return new Said("t" + prompt.hashCode(), -1, 2);
    }

    private static Result verify(URI fleet, Optional<URI> reference) throws Exception {
        return new FleetVerification(fleet, reference, Optional.empty(), PROMPTS, 6, 4, 2, 0.1, 7).run();
    }

    /** @param answers by the request's id and the right one */
    private static Result verifyServer(BiFunction<String, Said, Said> answers) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.createContext("/v1/models", exchange -> {
            exchange.getRequestBody().readAllBytes();
            respond(
                    exchange.getResponseBody(),
                    length -> exchange.sendResponseHeaders(200, length),
                    "{\"data\":[{\"id\":\"m\"}]}");
        });
        server.createContext("/v1/completions", exchange -> {
            JsonNode body = Instances.JSON.readTree(exchange.getRequestBody().readAllBytes());
            String id = exchange.getRequestHeaders().getFirst("X-Request-Id");
            Said said = answers.apply(id, right(body.path("prompt").asString()));
            respond(
                    exchange.getResponseBody(),
                    length -> exchange.sendResponseHeaders(said.equals(REFUSED) ? 500 : 200, length),
                    said.json());
        });
        server.start();
        try {
            return verify(URI.create("http://127.0.0.1:" + server.getAddress().getPort()), Optional.empty());
        } finally {
            server.stop(0);
        }
    }

    private interface Head {
        void send(long length) throws IOException;
    }

    private static void respond(OutputStream to, Head head, String body) throws IOException {
        byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
        head.send(bytes.length);
        to.write(bytes);
        to.close();
    }

    private static BiFunction<String, Said, Said> to(String request, Said said) {
        return (id, right) -> id.equals(request) ? said : right;
    }

    @Test
    void theAnswerThatIsWrongIsNamed() throws Exception {
        Result result = verifyServer(to("verify-7-aborted-2", new Said("wrong", -1, 2)));
        assertThat(result.compared()).isEqualTo(Situation.values().length * PROMPTS);
        assertThat(result.isRight()).isFalse();
        assertThat(result.findings()).singleElement().satisfies(found -> {
            assertThat(found.requestId()).isEqualTo("verify-7-aborted-2");
            assertThat(found.prompt()).isEqualTo(2);
            assertThat(found.situation()).isEqualTo(Situation.ABORTED);
            assertThat(found.what()).contains("token 0 is 'wrong' in place of 't");
        });
    }

    @Test
    void aRightTokenWithAnotherProbabilityIsWrong() throws Exception {
        BiFunction<String, Said, Said> all =
                (id, right) -> id.endsWith("-1") ? new Said("same", id.contains("evicted") ? -0.5 : -0.7, 2) : right;
        assertThat(verifyServer(all).findings()).extracting(Finding::requestId).containsExactly("verify-7-evicted-1");
    }

    @Test
    void answersMayPartWhereTwoTokensAreEquallyLikely() throws Exception {
        BiFunction<String, Said, Said> all =
                (id, right) -> id.endsWith("-1") ? new Said(id.contains("repeated") ? "a" : "b", -0.7, 0.05) : right;
        Result result = verifyServer(all);
        assertThat(result.isRight()).isTrue();
        assertThat(result.close()).isEqualTo(1);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '"',
            value = {"0 | text '' in place of 'x'", "1 | it ends after 1 tokens in place of 2"})
    void anAnswerThatEndsEarlierIsWrong(int tokens, String what) throws Exception {
        Result result = verifyServer((id, right) -> id.equals("verify-7-repeated-3") ? right.cutTo(tokens) : right);
        assertThat(result.findings())
                .singleElement()
                .satisfies(found -> assertThat(found.what()).contains(what));
    }

    @Test
    void anAnswerThatDoesNotComeIsAFinding() throws Exception {
        Result result = verifyServer(to("verify-7-cold-0", REFUSED));
        assertThat(result.compared()).isEqualTo(Situation.values().length * PROMPTS - 1);
        assertThat(result.findings())
                .singleElement()
                .satisfies(found -> assertThat(found.what()).contains("answered 500"));
    }

    @Tag("thorough")
    @Test
    void theAnswersOfAFleetOfBatonsAreRight() throws Exception {
        Instance prefill = INSTANCES.serve(
                "prefill",
                "--kv-transfer-config.kv_connector",
                "NixlConnector",
                "--kv-transfer-config.kv_role",
                "kv_producer",
                "--kv-transfer-config.kv_connector_extra_config.side_channel_port",
                "0");
        Instance decode = INSTANCES.serve(
                "decode",
                "--kv-transfer-config.kv_connector",
                "NixlConnector",
                "--kv-transfer-config.kv_role",
                "kv_consumer",
                "--kv-transfer-config.kv_connector_extra_config.side_channel_port",
                "0");
        Instance router = INSTANCES.route(
                "router", java.util.List.of(prefill), java.util.List.of(decode), "--flow", "kv_transfer_params");
        Result result = verify(router.url(), Optional.of(prefill.url()));
        assertThat(result.findings()).isEmpty();
        assertThat(result.compared()).isEqualTo(Situation.values().length * PROMPTS);
        assertThat(decode.prompts().transferred()).isPositive();
    }
}
