package example;

import static org.springframework.ai.chat.client.AdvisorParams.ENABLE_NATIVE_STRUCTURED_OUTPUT;

import org.springframework.ai.chat.client.ChatClient;
import org.springframework.ai.openai.OpenAiChatModel;
import org.springframework.ai.openai.OpenAiChatOptions;

/** Spring AI: an answer as an entity. */
public class SpringAi {
    public static void main(String[] args) {
        OpenAiChatModel model = OpenAiChatModel.builder()
                .options(OpenAiChatOptions.builder()
                        .baseUrl(args[0])
                        .apiKey("none")
                        .model(args[1])
                        .maxTokens(1000)
                        .build())
                .build();
        Home home = ChatClient.create(model)
                .prompt(Home.QUESTION)
                .advisors(ENABLE_NATIVE_STRUCTURED_OUTPUT)
                .call()
                .entity(Home.class);
        System.out.println(home);
    }
}
