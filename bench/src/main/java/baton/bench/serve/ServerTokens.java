package baton.bench.serve;

import baton.kv.ConfigException;
import java.io.IOException;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Random;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** A server's own tokenizer, by its {@code /tokenize} and {@code /detokenize}, which vLLM and Baton have. */
public final class ServerTokens implements BenchTokenizer {
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final int WORDS = 2000;
    private static final int LONGEST_WORD = 9;

    private final String base;
    private final String model;
    private final EndpointClient client;
    private final int[] ids;

    /**
     * @param endpoint of the server
     * @param model its name there
     * @throws ConfigException if the server does not tokenize
     */
    public ServerTokens(Endpoint endpoint, String model) {
        this.base = endpoint.base();
        this.model = model;
        client = new EndpointClient(endpoint);
        try {
            ids = ordinary();
        } catch (IOException e) {
            client.close();
            throw new ConfigException(
                    "tokenizer",
                    "is not given, and the server does not tokenize (" + e.getMessage()
                            + "); give --tokenizer with a model directory",
                    e);
        }
    }

    /** Tokens of made-up words: an API does not say which ids are ordinary ones. */
    private int[] ordinary() throws IOException {
        Random random = new Random(1);
        String text = IntStream.range(0, WORDS)
                .mapToObj(_ -> random.ints(1 + random.nextInt(LONGEST_WORD), 'a', 'z' + 1)
                        .mapToObj(Character::toString)
                        .collect(Collectors.joining()))
                .collect(Collectors.joining(" "));
        Set<Integer> found = new HashSet<>();
        for (int id : encode(text, false)) {
            found.add(id);
        }
        if (found.isEmpty()) {
            throw new IOException(base + "/tokenize answered without tokens");
        }
        return found.stream().mapToInt(Integer::intValue).sorted().toArray();
    }

    @Override
    public int[] ids() {
        return ids.clone();
    }

    @Override
    public int around() throws IOException {
        return encode("a", true).length - encode("a", false).length;
    }

    @Override
    public int[] encode(String text, boolean around) throws IOException {
        return tokens(
                JSON.createObjectNode().put("model", model).put("prompt", text).put("add_special_tokens", around));
    }

    private int[] tokens(ObjectNode request) throws IOException {
        return client.post("/tokenize", request)
                .path("tokens")
                .valueStream()
                .mapToInt(JsonNode::asInt)
                .toArray();
    }

    @Override
    public String decode(int[] ids) throws IOException {
        ObjectNode request = JSON.createObjectNode().put("model", model);
        ArrayNode tokens = request.putArray("tokens");
        Arrays.stream(ids).forEach(tokens::add);
        return client.post("/detokenize", request).path("prompt").asString("");
    }

    @Override
    public String chat(String message) throws IOException {
        ObjectNode request = JSON.createObjectNode().put("model", model);
        request.putArray("messages").addObject().put("role", "user").put("content", message);
        return decode(tokens(request));
    }

    @Override
    public void close() {
        client.close();
    }
}
