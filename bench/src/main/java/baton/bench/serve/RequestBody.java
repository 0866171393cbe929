package baton.bench.serve;

import io.vertx.core.buffer.Buffer;
import java.util.Map;
import java.util.OptionalInt;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * The body of requests, with the fields that vLLM's {@code bench serve} sends.
 *
 * @param model its name at the server
 * @param ignoreEos whether answers go on to their full length
 * @param logprobs of each token, for completions
 * @param extra more fields, which come before all others
 */
public record RequestBody(
        Backend backend, String model, boolean ignoreEos, OptionalInt logprobs, Map<String, JsonNode> extra) {
    public RequestBody {
        extra = Map.copyOf(extra);
    }

    /** One that asks for greedy answers of full length. */
    public static RequestBody greedy(Backend backend, String model) {
        return new RequestBody(
                backend,
                model,
                true,
                OptionalInt.empty(),
                Map.of("temperature", JsonNodeFactory.instance.numberNode(0)));
    }

    Buffer of(Sample sample) {
        ObjectNode body = JsonNodeFactory.instance.objectNode().put("model", model);
        switch (backend) {
            case OPENAI, VLLM -> {
                body.set("prompt", sample.prompt());
                body.put("repetition_penalty", 1.0).put("max_tokens", sample.outputTokens());
                logprobs.ifPresentOrElse(count -> body.put("logprobs", count), () -> body.putNull("logprobs"));
            }
            case OPENAI_CHAT -> {
                ObjectNode message = body.putArray("messages").addObject().put("role", "user");
                message.putArray("content").addObject().put("type", "text").set("text", sample.prompt());
                body.put("max_completion_tokens", sample.outputTokens());
            }
        }
        body.put("stream", true).putObject("stream_options").put("include_usage", true);
        if (ignoreEos) {
            body.put("ignore_eos", true);
        }
        extra.forEach(body::set);
        return Buffer.buffer(body.toString());
    }
}
