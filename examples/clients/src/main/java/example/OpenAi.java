package example;

import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import com.openai.models.chat.completions.ChatCompletionCreateParams;

/** OpenAI's client: the schema of a record is the response format. */
public class OpenAi {
    public static void main(String[] args) {
        OpenAIClient client =
                OpenAIOkHttpClient.builder().baseUrl(args[0]).apiKey("none").build();
        Home home = client.chat()
                .completions()
                .create(ChatCompletionCreateParams.builder()
                        .model(args[1])
                        .addUserMessage(Home.QUESTION)
                        .maxCompletionTokens(1000)
                        .responseFormat(Home.class)
                        .build())
                .choices()
                .getFirst()
                .message()
                .content()
                .orElseThrow();
        System.out.println(home);
        client.close();
    }
}
