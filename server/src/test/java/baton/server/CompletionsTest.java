package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfig;
import baton.engine.FinishReason;
import baton.engine.GenerationRequest;
import baton.engine.SamplingParams;
import baton.engine.TokenLogprobs;
import baton.engine.TokenLogprobs.Candidate;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.JsonNode;

class CompletionsTest {
    @AutoClose
    private final ServerFixture fixture = new ServerFixture();

    @Test
    void answersWithTheShapeOfOpenAiAndVllm() throws Exception {
        fixture.engine.answers("Hello", " world");
        HttpResponse<String> response = fixture.send(HttpRequest.newBuilder(fixture.uri("/v1/completions"))
                .header("Content-Type", "application/json")
                .header("X-Request-Id", "abc-1")
                .POST(HttpRequest.BodyPublishers.ofString("{\"model\":\"tiny-ledger\",\"prompt\":[5,6,7,8]}")));
        assertThat(response.statusCode()).isEqualTo(200);
        assertThat(response.headers().firstValue("X-Request-Id")).contains("abc-1");
        assertThat(response.headers().firstValue("Content-Type")).contains("application/json");
        assertThat(response.body().replaceFirst("\"created\":\\d+", "\"created\":0"))
                .isEqualTo(
                        "{\"id\":\"cmpl-abc-1\",\"object\":\"text_completion\",\"created\":0,\"model\":\"tiny-ledger\","
                                + "\"choices\":[{\"index\":0,\"text\":\"Hello world\",\"logprobs\":null,\"finish_reason\":\"stop\","
                                + "\"stop_reason\":null}],\"service_tier\":null,\"system_fingerprint\":null,"
                                + "\"usage\":{\"prompt_tokens\":4,\"total_tokens\":6,\"completion_tokens\":2,"
                                + "\"prompt_tokens_details\":{\"cached_tokens\":3}},\"kv_transfer_params\":null}");
        GenerationRequest request = fixture.engine.nextSubmitted().request;
        assertThat(request.id()).matches("cmpl-abc-1-0-[0-9a-f]{8}");
        assertThat(request.prompt()).containsExactly(5, 6, 7, 8);
    }

    @Test
    void everySamplingFieldReachesTheEngine() throws Exception {
        fixture.engine.answers("x");
        assertThat(fixture.post("/v1/completions", """
                        {"model":"tiny-ledger","prompt":"a","n":2,"best_of":2,"temperature":0.5,"top_p":0.9,"top_k":7,
                        "min_p":0.1,"seed":9007199254740993,"presence_penalty":0.2,"frequency_penalty":-0.3,
                        "repetition_penalty":1.2,"stop":["END","STOP"],"stop_token_ids":[9,10],
                        "include_stop_str_in_output":true,"ignore_eos":true,"max_tokens":12,"min_tokens":3,"logprobs":2,
                        "logit_bias":{"5":1.5,"6":-2},"skip_special_tokens":false,"cache_salt":"pepper","priority":-4,
                        "allowed_token_ids":[5,6,7],"bad_words":["a"],"user":"u","spaces_between_special_tokens":true,
                        "prompt_logprobs":1,"kv_transfer_params":{"do_remote_decode":true},"nobody_knows_this":{}}
                        """).statusCode()).isEqualTo(200);
        GenerationRequest request = fixture.engine.nextSubmitted().request;
        assertThat(request.sampling())
                .isEqualTo(SamplingParams.builder()
                        .n(2)
                        .temperature(0.5)
                        .topP(0.9)
                        .topK(7)
                        .minP(0.1)
                        .seed(9007199254740993L)
                        .presencePenalty(0.2)
                        .frequencyPenalty(-0.3)
                        .repetitionPenalty(1.2)
                        .stop(List.of("END", "STOP"))
                        .stopTokenIds(Set.of(9, 10))
                        .includeStopInOutput(true)
                        .ignoreEos(true)
                        .maxTokens(12)
                        .minTokens(3)
                        .logprobs(2)
                        .promptLogprobs(1)
                        .logitBias(Map.of(5, 1.5, 6, -2.0))
                        .skipSpecialTokens(false)
                        .allowedTokenIds(Set.of(5, 6, 7))
                        .badWords(SamplingParams.badWords(List.of("a"), fixture.engine.tokenizer()))
                        .build());
        assertThat(request.sampling().badWords())
                .contains(ints(fixture.engine.tokenizer().encode("a", false)));
        assertThat(request.cacheSalt()).contains("pepper");
        assertThat(request.priority()).isEqualTo(-4);
        assertThat(request.kvTransferParams().flatMap(params -> params.bool("do_remote_decode")))
                .contains(true);
    }

    @Test
    void samplingDefaultsAreSixteenTokensAndTheModelsOwn() throws Exception {
        try (ServerFixture tuned = new ServerFixture(config -> config.samplingDefaults(
                sampling -> sampling.temperature(0.6).topK(40).maxTokens(99)))) {
            tuned.engine.answers("x");
            tuned.post("/v1/completions", "{\"prompt\":\"a\",\"top_k\":3}");
            assertThat(tuned.engine.nextSubmitted().request.sampling())
                    .isEqualTo(SamplingParams.builder()
                            .temperature(0.6)
                            .topK(3)
                            .maxTokens(16)
                            .build());
        }
    }

    /** A prefill leg computes the tokens that caches lack. */
    @Test
    void theCacheHitThresholdIsTheRequestsElseTheServersButOfAPrefillLeg() throws Exception {
        try (ServerFixture strict = new ServerFixture(config -> config.cacheHitThreshold(0.25))) {
            strict.engine.answers("x");
            for (Map.Entry<String, Double> each : Map.of(
                            "", 0.25,
                            ",\"cache_hit_threshold\":0", 0.0,
                            ",\"cache_hit_threshold\":0.75", 0.75,
                            ",\"kv_transfer_params\":{\"do_remote_decode\":true}", 0.0)
                    .entrySet()) {
                strict.post("/v1/completions", "{\"prompt\":\"a\"" + each.getKey() + "}");
                assertThat(strict.engine.nextSubmitted().request.cacheHitThreshold())
                        .isEqualTo(each.getValue());
            }
            HttpResponse<String> refused =
                    strict.post("/v1/completions", "{\"prompt\":\"a\",\"cache_hit_threshold\":1.5}");
            assertThat(refused.statusCode()).isEqualTo(400);
            assertThat(ServerFixture.json(refused).at("/error/message").asString())
                    .isEqualTo("cache_hit_threshold: is 1.5, must be in [0, 1]");
        }
    }

    @Test
    void promptsAreStringsOrTokenIdsOneOrMany() throws Exception {
        fixture.engine.answers("x");
        int[] encoded = fixture.engine.tokenizer().encode("Item 7", true);
        assertThat(promptsOf("\"Item 7\"", 1)).containsExactly(ints(encoded));
        assertThat(promptsOf("[\"Item 7\",\"b\"]", 2))
                .containsExactly(ints(encoded), ints(fixture.engine.tokenizer().encode("b", true)));
        assertThat(promptsOf("[1,2,3]", 1)).containsExactly(List.of(1, 2, 3));
        assertThat(promptsOf("[[1,2],[3]]", 2)).containsExactly(List.of(1, 2), List.of(3));
        assertThat(promptsOf("\"Item 7\",\"add_special_tokens\":false", 1))
                .containsExactly(ints(fixture.engine.tokenizer().encode("Item 7", false)));
        assertThat(promptsOf("\"ignored\",\"kv_transfer_params\":{\"prompt_token_ids\":[4,5]}", 1))
                .containsExactly(List.of(4, 5));
        try (ServerFixture strict = new ServerFixture(config -> config.kvPromptTokenIds(false))) {
            strict.engine.answers("x");
            strict.post("/v1/completions", "{\"prompt\":[1,2],\"kv_transfer_params\":{\"prompt_token_ids\":[4,5]}}");
            assertThat(strict.engine.nextSubmitted().request.prompt()).containsExactly(1, 2);
        }
    }

    @Test
    void choicesOfManyPromptsAreNumberedPromptByPrompt() throws Exception {
        fixture.engine.script(session -> {
            for (int index = 1; index >= 0; index--) {
                session.output(index, session.request.prompt()[0] + ":" + index);
                session.finish(index, FinishReason.LENGTH);
            }
        });
        JsonNode json = ServerFixture.json(
                fixture.post("/v1/completions", "{\"prompt\":[[20],[30,31,32]],\"n\":2,\"temperature\":1}"));
        List<String> texts = new ArrayList<>();
        json.get("choices")
                .forEach(choice -> texts.add(
                        choice.get("index").asInt() + "=" + choice.get("text").asString()));
        assertThat(texts).containsExactly("0=20:0", "1=20:1", "2=30:0", "3=30:1");
        assertThat(json.at("/usage/prompt_tokens").asInt()).isEqualTo(4);
        assertThat(json.at("/usage/completion_tokens").asInt()).isEqualTo(4);
        assertThat(json.at("/usage/prompt_tokens_details/cached_tokens").asInt())
                .as("of three tokens each, and not more than the first prompt has")
                .isEqualTo(1 + FakeEngine.CACHED_TOKENS);
    }

    @Test
    void logprobsHaveTheCompletionForm() throws Exception {
        int a = id("a");
        int b = id("b");
        fixture.engine.script(session -> {
            session.output(
                    0,
                    new int[] {a},
                    "a",
                    List.of(new TokenLogprobs(a, -0.5f, 1, List.of(new Candidate(a, -0.5f), new Candidate(b, -1.5f)))));
            session.output(
                    0,
                    new int[] {b},
                    "b",
                    List.of(new TokenLogprobs(
                            b,
                            Float.NEGATIVE_INFINITY,
                            9,
                            List.of(new Candidate(a, -0.25f), new Candidate(id(" "), -3f)))));
            session.finish(0, FinishReason.STOP, Optional.of("END"), Optional.empty());
        });
        JsonNode choice = ServerFixture.json(fixture.post("/v1/completions", "{\"prompt\":\"x\",\"logprobs\":2}"))
                .at("/choices/0");
        assertThat(choice.get("logprobs").toString())
                .isEqualTo("{\"text_offset\":[0,1],\"token_logprobs\":[-0.5,-9999.0],\"tokens\":[\"a\",\"b\"],"
                        + "\"top_logprobs\":[{\"a\":-0.5,\"b\":-1.5},{\"a\":-0.25,\" \":-3.0,\"b\":-9999.0}]}");
        assertThat(choice.get("stop_reason").asString()).isEqualTo("END");
    }

    @Test
    void echoPutsThePromptAndItsLogprobsInFront() throws Exception {
        int[] prompt = fixture.engine.tokenizer().encode("ab", false);
        int a = id("a");
        fixture.engine.script(session -> {
            List<TokenLogprobs> ofPrompt = new ArrayList<>();
            for (int i = 1; i < session.request.prompt().length; i++) {
                ofPrompt.add(new TokenLogprobs(session.request.prompt()[i], -2f, 3, List.of()));
            }
            session.promptLogprobs(ofPrompt);
            session.output(0, new int[] {a}, "a", List.of(new TokenLogprobs(a, -0.5f, 1, List.of())));
            session.finish(0, FinishReason.STOP, Optional.of(4), Optional.empty());
        });
        JsonNode choice = ServerFixture.json(
                        fixture.post(
                                "/v1/completions",
                                "{\"prompt\":\"ab\",\"add_special_tokens\":false,\"echo\":true,\"logprobs\":0,\"return_token_ids\":true}"))
                .at("/choices/0");
        assertThat(choice.get("text").asString()).isEqualTo("aba");
        assertThat(choice.get("stop_reason").asInt()).isEqualTo(4);
        assertThat(choice.at("/logprobs/tokens").size()).isEqualTo(prompt.length + 1);
        assertThat(choice.at("/logprobs/token_logprobs/0").isNull()).isTrue();
        assertThat(choice.at("/logprobs/text_offset/" + prompt.length).asInt()).isEqualTo(2);
        assertThat(choice.get("prompt_token_ids").size()).isEqualTo(prompt.length);
        assertThat(choice.get("token_ids").toString()).isEqualTo("[" + a + "]");
    }

    @Test
    void aNullFieldCountsAsAbsent() throws Exception {
        fixture.engine.answers("x");
        StringBuilder body = new StringBuilder("{\"prompt\":\"a\"");
        for (String name : List.of(
                "model",
                "echo",
                "suffix",
                "n",
                "best_of",
                "max_tokens",
                "temperature",
                "top_p",
                "top_k",
                "min_p",
                "seed",
                "stop",
                "stop_token_ids",
                "stream",
                "stream_options",
                "logprobs",
                "prompt_logprobs",
                "logit_bias",
                "presence_penalty",
                "frequency_penalty",
                "repetition_penalty",
                "min_tokens",
                "ignore_eos",
                "user",
                "allowed_token_ids",
                "bad_words",
                "truncate_prompt_tokens",
                "response_format",
                "structured_outputs",
                "guided_json",
                "cache_salt",
                "priority",
                "request_id",
                "kv_transfer_params",
                "add_special_tokens",
                "return_token_ids",
                "return_tokens_as_token_ids",
                "skip_special_tokens",
                "use_beam_search")) {
            body.append(",\"").append(name).append("\":null");
        }
        HttpResponse<String> response = fixture.post("/v1/completions", body + "}");
        assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
        GenerationRequest request = fixture.engine.nextSubmitted().request;
        assertThat(request.sampling()).isEqualTo(SamplingParams.builder().build());
    }

    @Test
    void bestOfReturnsTheSequencesWithTheHighestMeanLogprob() throws Exception {
        float[] means = {-3f, -0.5f, -9f, -1f};
        fixture.engine.script(session -> {
            assertThat(session.request.sampling().n()).isEqualTo(4);
            for (int index = 0; index < 4; index++) {
                int prompt = session.request.prompt()[0];
                // Longer sequences are less probable as a whole; the mean per token counts.
                for (int token = 0; token < 4 - index; token++) {
                    session.output(
                            index,
                            new int[] {5},
                            token == 0 ? prompt + ":" + index : "",
                            List.of(new TokenLogprobs(5, means[index], 1, List.of())));
                }
                session.finish(index, FinishReason.STOP);
            }
        });
        JsonNode json = ServerFixture.json(
                fixture.post("/v1/completions", "{\"prompt\":[[20],[30]],\"n\":2,\"best_of\":4,\"temperature\":1}"));
        List<String> texts = new ArrayList<>();
        json.get("choices")
                .forEach(choice -> texts.add(
                        choice.get("index").asInt() + "=" + choice.get("text").asString()));
        assertThat(texts).containsExactly("0=20:1", "1=20:3", "2=30:1", "3=30:3");
        assertThat(json.at("/choices/0/logprobs").isNull()).isTrue();
        // Usage counts all sequences, also those not returned.
        assertThat(json.at("/usage/completion_tokens").asInt()).isEqualTo(2 * (4 + 3 + 2 + 1));
    }

    /** SGLang's routers send both legs the same body. */
    @Test
    void thePrefillLegOfSglangsRoutersHasOneSequenceOfOneToken() throws Exception {
        fixture.engine.config = EngineConfig.of(FakeEngine.MODEL)
                .kvTransfer(KvTransferConfig.builder("SglangConnector", KvRole.PRODUCER)
                        .build())
                .build();
        fixture.engine.answers("x");
        assertThat(fixture.post(
                                "/v1/completions",
                                "{\"prompt\":\"a\",\"n\":2,\"best_of\":4,\"max_tokens\":9,\"temperature\":1,"
                                        + "\"bootstrap_host\":\"127.0.0.1\",\"bootstrap_port\":1,\"bootstrap_room\":7}")
                        .statusCode())
                .isEqualTo(200);
        SamplingParams sampling = fixture.engine.nextSubmitted().request.sampling();
        assertThat(sampling.n()).isEqualTo(1);
        assertThat(sampling.maxTokens()).hasValue(1);
    }

    @Test
    void anEchoWithoutTokensIsThePromptAlone() throws Exception {
        int[] prompt = fixture.engine.tokenizer().encode("ab", false);
        fixture.engine.script(session -> {
            assertThat(session.request.sampling().maxTokens()).hasValue(1);
            session.promptLogprobs(List.of(new TokenLogprobs(prompt[1], -2f, 3, List.of())));
            session.output(0, new int[] {7}, "z", List.of(new TokenLogprobs(7, -0.5f, 1, List.of())));
            session.finish(0, FinishReason.LENGTH);
        });
        String body = "{\"prompt\":\"ab\",\"add_special_tokens\":false,\"echo\":true,\"logprobs\":0,\"max_tokens\":0";
        JsonNode json = ServerFixture.json(fixture.post("/v1/completions", body + "}"));
        assertThat(json.at("/choices/0/text").asString()).isEqualTo("ab");
        assertThat(json.at("/choices/0/logprobs/token_logprobs").toString()).isEqualTo("[null,-2.0]");
        assertThat(json.at("/choices/0/finish_reason").asString()).isEqualTo("length");
        assertThat(json.at("/usage/completion_tokens").asInt()).isZero();
        List<String> events = StreamingTest.events(fixture.post("/v1/completions", body + ",\"stream\":true}"));
        assertThat(events.getFirst()).contains("\"text\":\"ab\"");
        assertThat(String.join("", events)).doesNotContain("z");
        // Without an echo, max_tokens must not be zero.
        assertThat(fixture.post("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":0}")
                        .statusCode())
                .isEqualTo(400);
    }

    @Test
    void logprobsCanNameTokensById() throws Exception {
        fixture.engine.script(session -> {
            session.output(
                    0,
                    new int[] {300},
                    "a",
                    List.of(new TokenLogprobs(300, -0.5f, 1, List.of(new Candidate(301, -1.5f)))));
            session.finish(0, FinishReason.STOP);
        });
        JsonNode logprobs = ServerFixture.json(fixture.post(
                        "/v1/completions", "{\"prompt\":\"x\",\"logprobs\":1,\"return_tokens_as_token_ids\":true}"))
                .at("/choices/0/logprobs");
        assertThat(logprobs.get("tokens").toString()).isEqualTo("[\"token_id:300\"]");
        assertThat(logprobs.get("top_logprobs").toString())
                .isEqualTo("[{\"token_id:301\":-1.5,\"token_id:300\":-0.5}]");
        JsonNode chat = ServerFixture.json(fixture.post(
                "/v1/chat/completions",
                "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"logprobs\":true,\"top_logprobs\":1,"
                        + "\"return_tokens_as_token_ids\":true}"));
        assertThat(chat.at("/choices/0/logprobs/content/0/token").asString()).isEqualTo("token_id:300");
        assertThat(chat.at("/choices/0/logprobs/content/0/top_logprobs/0/token").asString())
                .isEqualTo("token_id:301");
    }

    @Test
    void truncatePromptTokensDropsTheBeginningOrTheEndOfAPrompt() throws Exception {
        fixture.engine.answers("x");
        assertThat(promptsOf("[1,2,3,4,5],\"truncate_prompt_tokens\":2", 1)).containsExactly(List.of(4, 5));
        assertThat(promptsOf("[1,2],\"truncate_prompt_tokens\":3", 1)).containsExactly(List.of(1, 2));
        String right = ",\"truncation_side\":\"right\"";
        assertThat(promptsOf("[1,2,3,4,5],\"truncate_prompt_tokens\":2" + right, 1))
                .containsExactly(List.of(1, 2));
        String text = "Nora lives in Harrow. ".repeat(300);
        List<Integer> whole = promptsOf("\"" + text.substring(0, 440) + "\"", 1).getFirst();
        assertThat(promptsOf("\"" + text + "\",\"truncate_prompt_tokens\":9" + right, 1))
                .containsExactly(whole.subList(0, 9));
        assertThat(promptsOf("\"" + text + "\",\"truncate_prompt_tokens\":9,\"truncation_side\":\"left\"", 1))
                .isNotEqualTo(List.of(whole.subList(0, 9)));
        String tooLong = "[" + "5,".repeat(3000) + "6]";
        assertThat(promptsOf(tooLong + ",\"truncate_prompt_tokens\":-1,\"max_tokens\":48", 1)
                        .getFirst())
                .hasSize(2000)
                .endsWith(5, 6);
        assertThat(fixture.post("/v1/completions", "{\"prompt\":" + tooLong + "}")
                        .statusCode())
                .isEqualTo(400);
    }

    @Test
    void promptLogprobsHaveVllmsForm() throws Exception {
        int a = id("a");
        int b = id("b");
        fixture.engine.script(session -> {
            session.promptLogprobs(List.of(new TokenLogprobs(b, -2f, 5, List.of(new Candidate(a, -0.5f)))));
            session.output(0, "x");
            session.finish(0, FinishReason.STOP);
        });
        JsonNode json = ServerFixture.json(
                fixture.post("/v1/completions", "{\"prompt\":[" + a + "," + b + "],\"prompt_logprobs\":1}"));
        assertThat(json.at("/choices/0/prompt_logprobs").toString())
                .isEqualTo("[null,{\"" + b + "\":{\"logprob\":-2.0,\"rank\":5,\"decoded_token\":\"b\"},\"" + a
                        + "\":{\"logprob\":-0.5,\"rank\":1,\"decoded_token\":\"a\"}}]");
    }

    @Test
    void kvTransferParamsOfTheEngineAreInTheAnswer() throws Exception {
        fixture.engine.script(session -> {
            session.handsOver(JsonFields.parse("kv_transfer_params", "{\"remote_block_ids\":[[1,2]]}"));
            session.output(0, "x");
            session.finish(0, FinishReason.LENGTH);
        });
        JsonNode json = ServerFixture.json(fixture.post(
                "/v1/completions", "{\"prompt\":\"a\",\"kv_transfer_params\":{\"do_remote_decode\":true}}"));
        assertThat(json.get("kv_transfer_params").toString()).isEqualTo("{\"remote_block_ids\":[[1,2]]}");
    }

    @Test
    void theBodysRequestIdIsUsedWhenThereIsNoHeader() throws Exception {
        fixture.engine.answers("x");
        HttpResponse<String> response =
                fixture.post("/v1/completions", "{\"prompt\":\"a\",\"request_id\":\"___prefill_addr_10.0.0.1:1___x\"}");
        assertThat(ServerFixture.json(response).get("id").asString()).isEqualTo("cmpl-___prefill_addr_10.0.0.1:1___x");
        assertThat(response.headers().firstValue("X-Request-Id")).contains("___prefill_addr_10.0.0.1:1___x");
    }

    private List<List<Integer>> promptsOf(String prompt, int count) throws Exception {
        HttpResponse<String> response = fixture.post("/v1/completions", "{\"prompt\":" + prompt + "}");
        assertThat(response.statusCode()).as(response.body()).isEqualTo(200);
        List<List<Integer>> prompts = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            prompts.add(ints(fixture.engine.nextSubmitted().request.prompt()));
        }
        return prompts;
    }

    private int id(String text) {
        int[] ids = fixture.engine.tokenizer().encode(text, false);
        assertThat(ids).hasSize(1);
        return ids[0];
    }

    private static List<Integer> ints(int[] ids) {
        return Arrays.stream(ids).boxed().toList();
    }
}
