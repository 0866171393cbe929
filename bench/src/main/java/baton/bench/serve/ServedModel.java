package baton.bench.serve;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * The first model that a server lists.
 *
 * @param name to ask for
 * @param root the checkpoint, as the server says; the name if it does not
 */
public record ServedModel(String name, String root) {
    private static final Duration DEADLINE = Duration.ofSeconds(30);

    /** @throws IOException if the server lists none */
    public static ServedModel first(Endpoint endpoint) throws IOException {
        String url = endpoint.base() + "/v1/models";
        try (HttpClient http = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .connectTimeout(DEADLINE)
                .build()) {
            HttpRequest.Builder request =
                    HttpRequest.newBuilder(URI.create(url)).timeout(DEADLINE);
            endpoint.headers().forEach(request::setHeader);
            HttpResponse<String> response = http.send(request.build(), HttpResponse.BodyHandlers.ofString());
            http.shutdownNow();
            if (response.statusCode() != 200) {
                throw new IOException(url + " answered " + response.statusCode());
            }
            JsonNode model = JsonMapper.builder()
                    .build()
                    .readTree(response.body())
                    .path("data")
                    .path(0);
            String name = model.path("id").asString("");
            if (name.isEmpty()) {
                throw new IOException(url + " lists no model");
            }
            return new ServedModel(name, model.path("root").asString(name));
        } catch (JacksonException e) {
            throw new IOException(url + " answered with what is no JSON", e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException(url + ": interrupted", e);
        } catch (IOException e) {
            throw e.getMessage() == null ? new IOException(url + ": no server answers", e) : e;
        }
    }
}
