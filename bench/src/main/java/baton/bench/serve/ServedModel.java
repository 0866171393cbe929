package baton.bench.serve;

import java.io.IOException;
import java.time.Duration;
import tools.jackson.databind.JsonNode;

/**
 * The first model that a server lists.
 *
 * @param name to ask for
 * @param root the checkpoint, as the server says; the name if it does not
 */
public record ServedModel(String name, String root) {
    private static final String PATH = "/v1/models";

    /** @throws IOException if the server lists none */
    public static ServedModel first(Endpoint endpoint) throws IOException {
        return first(endpoint, EndpointClient.DEADLINE);
    }

    /** @param deadline for the answer */
    public static ServedModel first(Endpoint endpoint, Duration deadline) throws IOException {
        try (EndpointClient client = new EndpointClient(endpoint, deadline)) {
            JsonNode answer = client.get(PATH);
            JsonNode model = answer.path("data").path(0);
            String name = model.path("id").asString("");
            if (name.isEmpty()) {
                throw new IOException(endpoint.base() + PATH + " answered without the name of a model: "
                        + EndpointClient.shown(answer.toString()));
            }
            return new ServedModel(name, model.path("root").asString(name));
        }
    }
}
