package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Reply;
import baton.cli.Ledgers.Case;
import baton.testkit.Await;
import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import com.openai.core.JsonValue;
import com.openai.core.http.StreamResponse;
import com.openai.errors.BadRequestException;
import com.openai.errors.NotFoundException;
import com.openai.errors.UnauthorizedException;
import com.openai.helpers.ResponseAccumulator;
import com.openai.models.FunctionDefinition;
import com.openai.models.chat.completions.ChatCompletion;
import com.openai.models.chat.completions.ChatCompletionChunk;
import com.openai.models.chat.completions.ChatCompletionCreateParams;
import com.openai.models.chat.completions.ChatCompletionFunctionTool;
import com.openai.models.chat.completions.ChatCompletionStreamOptions;
import com.openai.models.chat.completions.ChatCompletionToolChoiceOption;
import com.openai.models.completions.Completion;
import com.openai.models.completions.CompletionChoice;
import com.openai.models.completions.CompletionCreateParams;
import com.openai.models.completions.CompletionUsage;
import com.openai.models.models.Model;
import com.openai.models.responses.Response;
import com.openai.models.responses.ResponseCreateParams;
import com.openai.models.responses.ResponseStatus;
import com.openai.models.responses.ResponseStreamEvent;
import java.net.http.HttpResponse;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** OpenAI's own client, which validates the answers, in front of a router and in front of a server; in bf16, with a key. */
class OpenAiClientTest {
    private static final String MODEL = "ledger";
    private static final String KEY = "s3cret";
    private static final String QUESTION = "Cora keeps the gold coin inside the green box.\n"
            + "The age of Nora is 87.\nTomas lives in Harrow.\n\nIn which town does Tomas live?";

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static final List<Endpoint> ENDPOINTS = new ArrayList<>();

    private static Instance decode;

    record Endpoint(Instance instance, OpenAIClient client) {
        @Override
        public String toString() {
            return instance.toString();
        }
    }

    @BeforeAll
    static void start() throws Exception {
        Path shared = INSTANCES.directory("kv");
        String[] options = {"--served-model-name", MODEL, "--api-key", KEY, "--max-num-seqs", "2"};
        Instance prefill = INSTANCES.serve("prefill", "kv_producer", shared, options);
        decode = INSTANCES.serve("decode", "kv_consumer", shared, options);
        Instance router = INSTANCES.route("router", List.of(prefill), List.of(decode));
        for (Instance instance : List.of(router, decode)) {
            ENDPOINTS.add(new Endpoint(instance, client(instance, KEY)));
        }
    }

    @AfterAll
    static void closeClients() {
        ENDPOINTS.forEach(endpoint -> endpoint.client.close());
    }

    private static OpenAIClient client(Instance instance, String key) throws InterruptedException {
        return OpenAIOkHttpClient.builder()
                .baseUrl(instance.url() + "/v1")
                .apiKey(key)
                .maxRetries(0)
                .timeout(Duration.ofSeconds(60))
                .build();
    }

    static List<Arguments> endpoints() {
        return ENDPOINTS.stream().map(Arguments::of).toList();
    }

    @ParameterizedTest
    @MethodSource("endpoints")
    void completionsGiveTheRecordedAnswers(Endpoint endpoint) {
        for (Case asked : Ledgers.clear()) {
            Completion completion =
                    endpoint.client.completions().create(completion(asked)).validate();
            assertThat(completion.choices().getFirst().text().strip())
                    .as(asked.name())
                    .isEqualTo(asked.text());
            CompletionUsage usage = completion.usage().orElseThrow();
            assertThat(usage.promptTokens()).isEqualTo(asked.prompt().length);
            assertThat(usage.completionTokens()).isEqualTo(asked.answer().length);
        }
        assertThat(Ledgers.clear()).hasSizeGreaterThan(12);
    }

    /** The special tokens are those of models/tiny-ledger/README.md. */
    @ParameterizedTest
    @MethodSource("endpoints")
    void recordedPromptsAsTextHaveTheirSpecialTokens(Endpoint endpoint) {
        Case asked = Ledgers.named("recall-80");
        CompletionCreateParams.Builder text = CompletionCreateParams.builder()
                .model(MODEL)
                .prompt(asked.promptText())
                .maxTokens(asked.answer().length)
                .temperature(0);
        Completion twice = endpoint.client.completions().create(text.build()).validate();
        assertThat(twice.usage().orElseThrow().promptTokens()).isEqualTo(asked.prompt().length + 1);

        Completion once = endpoint.client
                .completions()
                .create(text.putAdditionalBodyProperty("add_special_tokens", JsonValue.from(false))
                        .build())
                .validate();
        assertThat(once.usage().orElseThrow().promptTokens()).isEqualTo(asked.prompt().length);
        assertThat(once.choices().getFirst().text().strip()).isEqualTo(asked.text());
    }

    @ParameterizedTest
    @MethodSource("endpoints")
    void streamedCompletions(Endpoint endpoint) {
        Case asked = Ledgers.named("recall-600");
        StringBuilder text = new StringBuilder();
        try (StreamResponse<Completion> stream = endpoint.client.completions().createStreaming(completion(asked))) {
            stream.stream()
                    .forEach(chunk -> text.append(chunk.choices().getFirst().text()));
        }
        assertThat(text.toString().strip()).isEqualTo(asked.text());
    }

    @ParameterizedTest
    @MethodSource("endpoints")
    void chat(Endpoint endpoint) {
        ChatCompletion completion =
                endpoint.client.chat().completions().create(question().build()).validate();
        ChatCompletion.Choice choice = completion.choices().getFirst();
        assertThat(choice.message().content().orElseThrow()).contains("Harrow");
        assertThat(choice.finishReason()).isEqualTo(ChatCompletion.Choice.FinishReason.STOP);
    }

    @ParameterizedTest
    @MethodSource("endpoints")
    void streamedChat(Endpoint endpoint) {
        ChatCompletionCreateParams params = question()
                .streamOptions(
                        ChatCompletionStreamOptions.builder().includeUsage(true).build())
                .build();
        StringBuilder text = new StringBuilder();
        List<CompletionUsage> usages;
        try (StreamResponse<ChatCompletionChunk> stream =
                endpoint.client.chat().completions().createStreaming(params)) {
            usages = stream.stream()
                    .map(ChatCompletionChunk::validate)
                    .peek(chunk -> chunk.choices()
                            .forEach(choice ->
                                    text.append(choice.delta().content().orElse(""))))
                    .flatMap(chunk -> chunk.usage().stream())
                    .toList();
        }
        assertThat(text.toString()).contains("Harrow");
        assertThat(usages).hasSize(1);
        assertThat(usages.getFirst().completionTokens()).isPositive();
    }

    @ParameterizedTest
    @MethodSource("endpoints")
    void responses(Endpoint endpoint) throws Exception {
        double handedOver = decode.metric("vllm:external_prefix_cache_hits_total", "");
        ResponseCreateParams params = ResponseCreateParams.builder()
                .model(MODEL)
                .input(QUESTION.replace("gold coin", "silver ring"))
                .temperature(0.0)
                .maxOutputTokens(32)
                .store(false)
                .build();
        Response whole = endpoint.client.responses().create(params).validate();
        assertThat(whole.status()).contains(ResponseStatus.COMPLETED);
        ResponseAccumulator accumulator = ResponseAccumulator.createWithSnapshots();
        try (StreamResponse<ResponseStreamEvent> stream =
                endpoint.client.responses().createStreaming(params)) {
            stream.stream().map(ResponseStreamEvent::validate).forEach(accumulator::accumulate);
        }
        Response streamed = accumulator.response().validate();
        assertThat(accumulator.reconstructedResponse().output()).isEqualTo(streamed.output());
        for (Response response : List.of(whole, streamed)) {
            assertThat(response.output()
                            .getFirst()
                            .asMessage()
                            .content()
                            .getFirst()
                            .asOutputText()
                            .text())
                    .contains("Harrow");
            assertThat(response.usage().orElseThrow().outputTokens()).isPositive();
        }
        if (endpoint.instance != decode) {
            assertThat(decode.metric("vllm:external_prefix_cache_hits_total", ""))
                    .isGreaterThan(handedOver);
        }
        assertThatThrownBy(() -> endpoint.client
                        .responses()
                        .create(params.toBuilder().previousResponseId("resp_1").build()))
                .isInstanceOf(BadRequestException.class)
                .hasMessageContaining("previous_response_id: is \"resp_1\", this server keeps no responses");
    }

    @ParameterizedTest
    @MethodSource("endpoints")
    void completionsTakeEveryFieldOfOpenAi(Endpoint endpoint) {
        Case asked = Ledgers.named("recall-600");
        var completions = endpoint.client.completions();
        Completion plain = completions.create(completion(asked)).validate();
        // The first token has no log probability; the client's own check does not know of that.
        Completion echoed = completions.create(completion(asked).toBuilder()
                .echo(true)
                .logprobs(2)
                .maxTokens(0)
                .build());
        CompletionChoice.Logprobs prompt =
                echoed.choices().getFirst().logprobs().orElseThrow();
        assertThat(prompt.tokens().orElseThrow()).hasSize(asked.prompt().length);
        assertThat(echoed.usage().orElseThrow().completionTokens()).isZero();

        String answer = plain.choices().getFirst().text();
        String end = answer.strip().substring(2, 4);
        Completion stopped = completions
                .create(completion(asked).toBuilder().stop(end).build())
                .validate();
        assertThat(stopped.choices().getFirst().text()).isEqualTo(answer.substring(0, answer.indexOf(end)));

        Completion best = completions
                .create(completion(asked).toBuilder()
                        .temperature(1.5)
                        .seed(5)
                        .n(2)
                        .bestOf(3)
                        .frequencyPenalty(0.5)
                        .presencePenalty(0.5)
                        .topP(0.9)
                        .user("somebody")
                        .build())
                .validate();
        assertThat(best.choices()).extracting(CompletionChoice::index).containsExactly(0L, 1L);

        Completion biased = completions
                .create(completion(asked).toBuilder()
                        .logitBias(CompletionCreateParams.LogitBias.builder()
                                .putAdditionalProperty("77", JsonValue.from(100))
                                .build())
                        .maxTokens(3)
                        .logprobs(0)
                        .build())
                .validate();
        assertThat(biased.choices().getFirst().logprobs().orElseThrow().tokens().orElseThrow())
                .hasSize(3)
                .allMatch(biased.choices()
                        .getFirst()
                        .logprobs()
                        .orElseThrow()
                        .tokens()
                        .orElseThrow()
                        .getFirst()::equals);

        Completion many = completions
                .create(completion(asked).toBuilder()
                        .promptOfArrayOfStrings(List.of("Tomas", "Nora"))
                        .maxTokens(1)
                        .build())
                .validate();
        assertThat(many.choices()).hasSize(2);
        assertThatThrownBy(() -> completions.create(
                        completion(asked).toBuilder().suffix("end").build()))
                .isInstanceOf(BadRequestException.class)
                .hasMessageContaining("suffix: is not supported");
    }

    @ParameterizedTest
    @MethodSource("endpoints")
    void chatTakesToolsAndRefusesUnsupportedOnes(Endpoint endpoint) {
        var chat = endpoint.client.chat().completions();
        ChatCompletion answer = chat.create(question()
                        .logprobs(true)
                        .topLogprobs(2)
                        .addTool(ChatCompletionFunctionTool.builder()
                                .function(FunctionDefinition.builder()
                                        .name("look_up")
                                        .build())
                                .build())
                        .toolChoice(ChatCompletionToolChoiceOption.Auto.NONE)
                        .build())
                .validate();
        var logprobs =
                answer.choices().getFirst().logprobs().orElseThrow().content().orElseThrow();
        assertThat(logprobs).isNotEmpty().allSatisfy(token -> {
            assertThat(token.topLogprobs()).hasSize(2);
            assertThat(token.topLogprobs().getFirst().token()).isEqualTo(token.token());
        });
        assertThatThrownBy(() -> chat.create(question()
                        .putAdditionalBodyProperty("guided_regex", JsonValue.from("("))
                        .build()))
                .isInstanceOf(BadRequestException.class)
                .hasMessageContaining("guided_regex: at character 1: the group is not closed");
        assertThatThrownBy(() -> chat.create(question()
                        .toolChoice(ChatCompletionToolChoiceOption.Auto.REQUIRED)
                        .build()))
                .isInstanceOf(BadRequestException.class)
                .hasMessageContaining("tool_choice: is \"required\", which needs tools");
    }

    @ParameterizedTest
    @MethodSource("endpoints")
    void models(Endpoint endpoint) {
        assertThat(endpoint.client.models().list().data()).extracting(Model::id).containsExactly(MODEL);
        assertThat(endpoint.client.models().retrieve(MODEL).validate().id()).isEqualTo(MODEL);
    }

    @ParameterizedTest
    @MethodSource("endpoints")
    void errorsAreUnderstood(Endpoint endpoint) throws Exception {
        CompletionCreateParams good = CompletionCreateParams.builder()
                .model(MODEL)
                .prompt("a")
                .maxTokens(2)
                .build();
        var completions = endpoint.client.completions();
        assertThatThrownBy(() -> completions.create(
                        good.toBuilder().prompt("Tomas ".repeat(3000)).build()))
                .isInstanceOf(BadRequestException.class)
                .hasMessageContaining("maximum context length is 2048 tokens")
                .hasMessageContaining("the prompt has 3002")
                .hasMessageContaining("at most 2047");
        assertThatThrownBy(() ->
                        completions.create(good.toBuilder().temperature(7.0).build()))
                .isInstanceOfSatisfying(BadRequestException.class, error -> {
                    assertThat(error.getMessage()).contains("temperature: is 7", "must be in [0, 2]");
                    assertThat(error.param()).contains("temperature");
                });
        assertThatThrownBy(
                        () -> completions.create(good.toBuilder().model("gpt-9").build()))
                .isInstanceOf(NotFoundException.class)
                .hasMessageContaining("gpt-9");
        try (ClosingClient stranger = new ClosingClient(client(endpoint.instance, "wrong"))) {
            assertThatThrownBy(() -> stranger.client.completions().create(good))
                    .isInstanceOf(UnauthorizedException.class)
                    .hasMessageContaining("API key");
        }
        Reply malformed = endpoint.instance.post("/v1/completions", "{\"prompt\": ", "Authorization", "Bearer " + KEY);
        assertThat(malformed.status()).isEqualTo(400);
        assertThat(malformed.error()).contains("JSON").doesNotContain("REDACTED");
        assertThat(completions.create(good).choices()).hasSize(1);
    }

    @ParameterizedTest
    @MethodSource("endpoints")
    void clientsThatLeaveEndTheirRequestsRunningAndQueued(Endpoint endpoint) throws Exception {
        double before = decode.metric("vllm:request_success_total", "\"abort\"");
        try (StreamResponse<Completion> first = endpoint.client.completions().createStreaming(endless(0));
                StreamResponse<Completion> second =
                        endpoint.client.completions().createStreaming(endless(1))) {
            assertThat(first.stream().findFirst()).isPresent();
            assertThat(second.stream().findFirst()).isPresent();
            // Both places are taken: the next request waits.
            CompletableFuture<HttpResponse<String>> third = endpoint.instance.postAndGoOn(
                    "/v1/completions",
                    Instances.greedy(Ledgers.prompt(100, 3), 1000).put("ignore_eos", true),
                    "Authorization",
                    "Bearer " + KEY);
            awaitWaiting(1);
            assertThat(third.cancel(true)).isTrue();
            awaitWaiting(0);
            assertThat(decode.metric("vllm:num_requests_running", "")).isEqualTo(2);
        }
        decode.awaitRest();
        assertThat(decode.metric("vllm:request_success_total", "\"abort\"") - before)
                .isEqualTo(3);
    }

    private static void awaitWaiting(int requests) throws Exception {
        Await.until(
                Instances.DEADLINE,
                () -> "not " + requests + " requests wait",
                () -> decode.metric("vllm:num_requests_waiting", "") == requests);
    }

    private static CompletionCreateParams endless(int variant) {
        return CompletionCreateParams.builder()
                .model(MODEL)
                .promptOfArrayOfTokens(Arrays.stream(Ledgers.prompt(60, variant))
                        .asLongStream()
                        .boxed()
                        .toList())
                .maxTokens(1900)
                .temperature(0)
                .putAdditionalBodyProperty("ignore_eos", JsonValue.from(true))
                .build();
    }

    private static CompletionCreateParams completion(Case asked) {
        return CompletionCreateParams.builder()
                .model(MODEL)
                .promptOfArrayOfTokens(
                        Arrays.stream(asked.prompt()).asLongStream().boxed().toList())
                .maxTokens(asked.answer().length + 4)
                .temperature(0)
                .build();
    }

    private static ChatCompletionCreateParams.Builder question() {
        return ChatCompletionCreateParams.builder()
                .model(MODEL)
                .addUserMessage(QUESTION)
                .temperature(0)
                .maxCompletionTokens(Optional.of(32L));
    }

    /** The client is no AutoCloseable. */
    private record ClosingClient(OpenAIClient client) implements AutoCloseable {
        @Override
        public void close() {
            client.close();
        }
    }
}
