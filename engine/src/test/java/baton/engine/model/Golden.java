package baton.engine.model;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * A recorded greedy continuation of tiny-ledger, computed in fp32 by an independent implementation.
 *
 * @param output the continuation up to and including its end token, or as far as it was recorded
 * @param margins by step, the logit of the best token less that of the second
 * @param topIds the five best first tokens
 * @param topLogits their logits
 */
public record Golden(String name, int[] prompt, int[] output, double[] margins, int[] topIds, double[] topLogits) {
    static final Path TINY_LEDGER = Path.of(System.getProperty("baton.root", ".."), "models", "tiny-ledger");

    public static List<Golden> all() throws IOException {
        JsonNode root = JsonMapper.builder().build().readTree(Files.readString(TINY_LEDGER.resolve("golden.json")));
        List<Golden> all = new ArrayList<>();
        for (JsonNode node : root.get("prompts")) {
            int[] ids = ints(node.get("output_ids"));
            int steps = node.get("tokens_to_stop").isNull()
                    ? ids.length
                    : Math.min(ids.length, node.get("tokens_to_stop").asInt());
            List<JsonNode> top = List.copyOf(node.get("first_step_top5").values());
            all.add(new Golden(
                    node.get("name").asString(),
                    ints(node.get("prompt_ids")),
                    java.util.Arrays.copyOf(ids, steps),
                    node.get("margins").values().stream()
                            .mapToDouble(JsonNode::asDouble)
                            .toArray(),
                    top.stream().mapToInt(entry -> entry.get("id").asInt()).toArray(),
                    top.stream()
                            .mapToDouble(entry -> entry.get("logit").asDouble())
                            .toArray()));
        }
        return all;
    }

    static int[] ints(JsonNode array) {
        return array.values().stream().mapToInt(JsonNode::asInt).toArray();
    }
}
