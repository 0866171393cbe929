package baton.server;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.EngineUnavailableException;
import baton.engine.FinishReason;
import baton.engine.TokenLogprobs;
import baton.engine.TokenLogprobs.Candidate;
import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import com.openai.core.http.StreamResponse;
import com.openai.errors.BadRequestException;
import com.openai.errors.InternalServerException;
import com.openai.errors.NotFoundException;
import com.openai.errors.UnauthorizedException;
import com.openai.helpers.ResponseAccumulator;
import com.openai.models.chat.completions.ChatCompletion;
import com.openai.models.chat.completions.ChatCompletionChunk;
import com.openai.models.chat.completions.ChatCompletionCreateParams;
import com.openai.models.chat.completions.ChatCompletionStreamOptions;
import com.openai.models.completions.Completion;
import com.openai.models.completions.CompletionChoice;
import com.openai.models.completions.CompletionCreateParams;
import com.openai.models.models.Model;
import com.openai.models.responses.EasyInputMessage;
import com.openai.models.responses.FunctionTool;
import com.openai.models.responses.Response;
import com.openai.models.responses.ResponseCreateParams;
import com.openai.models.responses.ResponseFunctionToolCall;
import com.openai.models.responses.ResponseInputItem;
import com.openai.models.responses.ResponseStatus;
import com.openai.models.responses.ResponseStreamEvent;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** OpenAI's own client, which validates answers. */
class OpenAiClientTest {
    private final ServerFixture fixture =
            new ServerFixture(config -> config.apiKey("s3cret").toolCallParser("hermes"));
    private final OpenAIClient client = client("s3cret");

    @AfterEach
    void close() {
        client.close();
        fixture.close();
    }

    @Test
    void completions() {
        fixture.engine.answers("Hello", " world");
        Completion completion = client.completions()
                .create(CompletionCreateParams.builder()
                        .model(ServerFixture.MODEL)
                        .prompt("Item 7")
                        .maxTokens(8)
                        .build())
                .validate();
        assertThat(completion.choices().getFirst().text()).isEqualTo("Hello world");
        assertThat(completion.choices().getFirst().finishReason()).isEqualTo(CompletionChoice.FinishReason.STOP);
        assertThat(completion.usage().orElseThrow().completionTokens()).isEqualTo(2);
        assertThat(completion.usage().orElseThrow().promptTokensDetails().flatMap(details -> details.cachedTokens()))
                .contains((long) FakeEngine.CACHED_TOKENS);
    }

    @Test
    void streamedCompletions() {
        fixture.engine.answers("Hello", " world");
        StringBuilder text = new StringBuilder();
        try (StreamResponse<Completion> stream = client.completions()
                .createStreaming(CompletionCreateParams.builder()
                        .model(ServerFixture.MODEL)
                        .prompt("Item 7")
                        .build())) {
            stream.stream()
                    .forEach(chunk -> text.append(chunk.choices().getFirst().text()));
        }
        assertThat(text.toString()).isEqualTo("Hello world");
    }

    @Test
    void chat() {
        int id = fixture.engine.tokenizer().encode("a", false)[0];
        fixture.engine.script(session -> {
            session.output(
                    0,
                    new int[] {id},
                    "Hello",
                    List.of(new TokenLogprobs(id, -0.5f, 1, List.of(new Candidate(id, -0.5f)))));
            session.finish(0, FinishReason.LENGTH);
        });
        ChatCompletion completion = client.chat()
                .completions()
                .create(ChatCompletionCreateParams.builder()
                        .model(ServerFixture.MODEL)
                        .addSystemMessage("Be brief.")
                        .addUserMessage("Item 7?")
                        .logprobs(true)
                        .topLogprobs(1)
                        .build())
                .validate();
        assertThat(completion.choices().getFirst().message().content()).contains("Hello");
        assertThat(completion.choices().getFirst().finishReason()).isEqualTo(ChatCompletion.Choice.FinishReason.LENGTH);
        assertThat(completion
                        .choices()
                        .getFirst()
                        .logprobs()
                        .orElseThrow()
                        .content()
                        .orElseThrow()
                        .getFirst()
                        .logprob())
                .isEqualTo(-0.5);
    }

    @Test
    void streamedChat() {
        fixture.engine.answers("Hello", " world");
        StringBuilder text = new StringBuilder();
        long total;
        try (StreamResponse<ChatCompletionChunk> stream = client.chat()
                .completions()
                .createStreaming(ChatCompletionCreateParams.builder()
                        .model(ServerFixture.MODEL)
                        .addUserMessage("Item 7?")
                        .streamOptions(ChatCompletionStreamOptions.builder()
                                .includeUsage(true)
                                .build())
                        .build())) {
            total = stream.stream()
                    .map(ChatCompletionChunk::validate)
                    .peek(chunk -> chunk.choices()
                            .forEach(choice ->
                                    text.append(choice.delta().content().orElse(""))))
                    .flatMap(chunk -> chunk.usage().stream())
                    .mapToLong(usage -> usage.completionTokens())
                    .sum();
        }
        assertThat(text.toString()).isEqualTo("Hello world");
        assertThat(total).isEqualTo(2);
    }

    @Test
    void responses() {
        fixture.engine.answers("Hello", " world");
        ResponseCreateParams params = ResponseCreateParams.builder()
                .model(ServerFixture.MODEL)
                .input("Item 7?")
                .instructions("Be brief.")
                .maxOutputTokens(8)
                .store(false)
                .build();
        Response response = client.responses().create(params).validate();
        assertThat(response.status()).contains(ResponseStatus.COMPLETED);
        assertThat(textOf(response)).isEqualTo("Hello world");
        assertThat(response.usage().orElseThrow().inputTokensDetails().cachedTokens())
                .isEqualTo(FakeEngine.CACHED_TOKENS);
        ResponseAccumulator accumulator = ResponseAccumulator.createWithSnapshots();
        try (StreamResponse<ResponseStreamEvent> stream = client.responses().createStreaming(params)) {
            stream.stream().map(ResponseStreamEvent::validate).forEach(accumulator::accumulate);
        }
        Response streamed = accumulator.response().validate();
        assertThat(textOf(streamed)).isEqualTo("Hello world");
        assertThat(accumulator.reconstructedResponse().output()).isEqualTo(streamed.output());
    }

    @Test
    void responsesCallFunctions() {
        fixture.engine.answers(
                "Well.", "<tool_call>", "{\"name\": \"look_up\", \"arguments\": {\"a\":", " 1}}", "</tool_call>");
        ResponseCreateParams params = ResponseCreateParams.builder()
                .model(ServerFixture.MODEL)
                .input("Item 7?")
                .addTool(FunctionTool.builder()
                        .name("look_up")
                        .strict(false)
                        .parameters(FunctionTool.Parameters.builder().build())
                        .build())
                .build();
        Response whole = client.responses().create(params).validate();
        ResponseAccumulator accumulator = ResponseAccumulator.createWithSnapshots();
        try (StreamResponse<ResponseStreamEvent> stream = client.responses().createStreaming(params)) {
            stream.stream().map(ResponseStreamEvent::validate).forEach(accumulator::accumulate);
        }
        Response streamed = accumulator.response().validate();
        assertThat(accumulator.reconstructedResponse().output()).isEqualTo(streamed.output());
        for (Response response : List.of(whole, streamed)) {
            assertThat(textOf(response)).isEqualTo("Well.");
            ResponseFunctionToolCall call = response.output().getLast().asFunctionCall();
            assertThat(call.name()).isEqualTo("look_up");
            assertThat(call.arguments()).isEqualTo("{\"a\": 1}");
            assertThat(response.tools().getFirst().asFunction().name()).isEqualTo("look_up");
            // The conversation goes on with the answer and the function's result.
            fixture.engine.answers("Seven.");
            List<ResponseInputItem> input = List.of(
                    ResponseInputItem.ofEasyInputMessage(EasyInputMessage.builder()
                            .role(EasyInputMessage.Role.USER)
                            .content("Item 7?")
                            .build()),
                    ResponseInputItem.ofResponseOutputMessage(
                            response.output().getFirst().asMessage()),
                    ResponseInputItem.ofFunctionCall(call),
                    ResponseInputItem.ofFunctionCallOutput(ResponseInputItem.FunctionCallOutput.builder()
                            .callId(call.callId())
                            .output("7")
                            .build()));
            Response last = client.responses()
                    .create(params.toBuilder().inputOfResponse(input).build());
            assertThat(textOf(last)).isEqualTo("Seven.");
        }
    }

    private static String textOf(Response response) {
        return response.output()
                .getFirst()
                .asMessage()
                .content()
                .getFirst()
                .asOutputText()
                .text();
    }

    @Test
    void models() {
        assertThat(client.models().list().data()).extracting(Model::id).containsExactly(ServerFixture.MODEL);
        assertThat(client.models().retrieve(ServerFixture.MODEL).validate().id())
                .isEqualTo(ServerFixture.MODEL);
    }

    @Test
    void errorsAreUnderstood() {
        CompletionCreateParams good = CompletionCreateParams.builder()
                .model(ServerFixture.MODEL)
                .prompt("a")
                .build();
        assertThatThrownBy(() -> client.completions()
                        .create(good.toBuilder().temperature(1000.0).build()))
                .isInstanceOfSatisfying(BadRequestException.class, error -> {
                    assertThat(error.getMessage()).contains("temperature: is 1000, must be in [0, 2]");
                    assertThat(error.param()).contains("temperature");
                });
        assertThatThrownBy(() -> client.completions()
                        .create(good.toBuilder().model("gpt-9").build()))
                .isInstanceOf(NotFoundException.class);
        OpenAIClient stranger = client("wrong");
        assertThatThrownBy(() -> stranger.completions().create(good)).isInstanceOf(UnauthorizedException.class);
        stranger.close();
        fixture.engine.script(
                session -> session.finish(0, FinishReason.ERROR, Optional.empty(), Optional.of("torn block")));
        assertThatThrownBy(() -> client.completions().create(good))
                .isInstanceOf(InternalServerException.class)
                .hasMessageContaining("torn block");
        fixture.engine.refuses(new EngineUnavailableException("full"));
        assertThatThrownBy(() -> client.completions().create(good))
                .isInstanceOf(InternalServerException.class)
                .hasMessageContaining("full");
    }

    private OpenAIClient client(String key) {
        return OpenAIOkHttpClient.builder()
                .baseUrl("http://127.0.0.1:" + fixture.server.port() + "/v1")
                .apiKey(key)
                .maxRetries(0)
                .build();
    }
}
