package example;

import static dev.langchain4j.model.chat.Capability.RESPONSE_FORMAT_JSON_SCHEMA;

import dev.langchain4j.model.chat.ChatModel;
import dev.langchain4j.model.openai.OpenAiChatModel;
import dev.langchain4j.service.AiServices;

/** LangChain4j: an AI service with a record as its result. */
public class LangChain {
    interface Reader {
        Home home(String text);
    }

    public static void main(String[] args) {
        ChatModel model = OpenAiChatModel.builder()
                .baseUrl(args[0])
                .apiKey("none")
                .modelName(args[1])
                .maxCompletionTokens(1000)
                .supportedCapabilities(RESPONSE_FORMAT_JSON_SCHEMA)
                .strictJsonSchema(true)
                .build();
        System.out.println(AiServices.create(Reader.class, model).home(Home.QUESTION));
    }
}
