package baton.cli;

import baton.cluster.ServerProcess;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Executors;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * Stands in for {@code baton serve} and {@code baton route}: answers every prompt with a token made of it. The system property
 * {@code fake} chooses the router's behaviour: {@code wrong} answers with another token; {@code tie} too, and the
 * instance's own token is hardly more probable; {@code computed} hands nothing over.
 */
final class FakeBaton {
    private static final JsonMapper JSON = JsonMapper.builder().build();

    private FakeBaton() {}

    public static void main(String[] args) throws IOException {
        boolean router = args[0].equals("route");
        String fake = System.getProperty("fake", "");
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 16);
        server.setExecutor(Executors.newVirtualThreadPerTaskExecutor());
        server.createContext("/v1/completions", exchange -> {
            JsonNode request = JSON.readTree(exchange.getRequestBody());
            int tokens = request.path("prompt").size();
            int wanted = request.path("max_tokens").asInt();
            StringBuilder body = new StringBuilder();
            for (int i = 0; i < wanted; i++) {
                int id = request.path("prompt").path(i).asInt()
                        + (router && i == wanted - 1 && (fake.equals("wrong") || fake.equals("tie")) ? 1 : 0);
                body.append("""
                        data: {"choices": [{"text": "x", "token_ids": [%d], "logprobs": {"top_logprobs": [{"a": -1.0, "b": %s}]}}]}

                        """.formatted(id, fake.equals("tie") ? -1.01 : -3.0));
            }
            body.append("""
                    data: {"choices": [], "usage": {"prompt_tokens": %d, "completion_tokens": %d, "prompt_tokens_details": {"cached_tokens": %d}}}

                    data: [DONE]

                    """.formatted(tokens, wanted, router && !fake.equals("computed") ? tokens - 1 : 0));
            byte[] bytes = body.toString().getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(200, bytes.length);
            exchange.getResponseBody().write(bytes);
            exchange.close();
        });
        server.start();
        System.out.println(
                ServerProcess.READY + "http://127.0.0.1:" + server.getAddress().getPort());
        System.out.flush();
        while (System.in.read() >= 0) {
            // Only the end counts.
        }
        System.exit(0);
    }
}
