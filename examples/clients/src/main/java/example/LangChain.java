package example;

import static dev.langchain4j.model.chat.Capability.RESPONSE_FORMAT_JSON_SCHEMA;

import dev.langchain4j.agent.tool.Tool;
import dev.langchain4j.data.message.UserMessage;
import dev.langchain4j.model.chat.ChatModel;
import dev.langchain4j.model.chat.request.ChatRequest;
import dev.langchain4j.model.chat.request.ToolChoice;
import dev.langchain4j.model.openai.OpenAiChatModel;
import dev.langchain4j.service.AiServices;

/** LangChain4j: an AI service that calls a tool and has a record as its result. */
public class LangChain {
    interface Reader {
        Home home(String question);
    }

    static class Ledger {
        enum Subject {
            HOMES,
            SHIPS
        }

        @Tool("The facts of the ledger about a subject.")
        String facts(Subject subject) {
            System.out.println("The facts about " + subject + " were asked for.");
            return "Tomas lives in Harrow.\n\n" + Home.QUESTION;
        }
    }

    /** A small model does not know when to call a tool: a call is required before the answer, and refused after its result. */
    static ChatRequest callFirst(ChatRequest request) {
        boolean begins = request.messages().getLast() instanceof UserMessage;
        return request.toBuilder()
                .toolChoice(begins ? ToolChoice.REQUIRED : ToolChoice.NONE)
                .build();
    }

    public static void main(String[] args) {
        ChatModel model = OpenAiChatModel.builder()
                .baseUrl(args[0])
                .apiKey("none")
                .modelName(args[1])
                .maxCompletionTokens(1000)
                .supportedCapabilities(RESPONSE_FORMAT_JSON_SCHEMA)
                .strictJsonSchema(true)
                .strictTools(true)
                .parallelToolCalls(false)
                .build();
        Reader reader = AiServices.builder(Reader.class)
                .chatModel(model)
                .tools(new Ledger())
                .chatRequestTransformer(LangChain::callFirst)
                .build();
        System.out.println(reader.home(Home.QUESTION));
    }
}
