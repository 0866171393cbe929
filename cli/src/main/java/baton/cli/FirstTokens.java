package baton.cli;

import baton.kv.Percentiles;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Times of the first requests to an endpoint, one after the other: each asks the demo's question about the demo's ledger with its lines in another
 * order, so that no cache has the answer. Over plain sockets, because the first use of an HTTP client would be measured too.
 */
final class FirstTokens {
    private static final Duration DEADLINE = Duration.ofMinutes(2);
    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final int MAX_TOKENS = 24;
    private static final int PROBES = 20;

    /** Beginning of a piece of text in a chunk; the first chunk has a role only. */
    private static final String TEXT = "\"content\":\"";

    private final URI endpoint;
    private final List<String> facts;
    private final Random random = new Random(1);

    FirstTokens(URI endpoint) throws IOException {
        this.endpoint = endpoint;
        this.facts = new ArrayList<>(DemoCommand.ledger().strip().lines().toList());
    }

    /**
     * Sends so many requests and prints the times of each.
     *
     * @return how many times as long the first request's first token took as the last's
     */
    double run(int requests, PrintWriter out) throws IOException {
        // The client and the HTTP path are warmed up before anything is timed.
        List<byte[]> questions = new ArrayList<>();
        for (int i = 0; i < requests; i++) {
            questions.add(question());
        }
        for (int i = 0; i < PROBES; i++) {
            send("GET /health", new byte[0]);
        }
        List<Double> millis = new ArrayList<>();
        out.println("  request   first token   whole answer");
        for (byte[] question : questions) {
            Times times = send("POST /v1/chat/completions", question);
            if (times.first == 0) {
                throw new CommandFailedException(endpoint + " has answered without text");
            }
            double ttft = (times.first - times.start) / 1e6;
            millis.add(ttft);
            out.printf(
                    Locale.ROOT, "  %7d %10.1f ms %11.1f ms%n", millis.size(), ttft, (times.end - times.start) / 1e6);
            out.flush();
        }
        List<Double> later = millis.subList(1, requests);
        if (!later.isEmpty()) {
            out.printf(
                    Locale.ROOT,
                    "  The first token of the first request took %.2f times as long as that of the last, %.2f times the median of the later ones.%n",
                    millis.getFirst() / millis.getLast(),
                    millis.getFirst() / Percentiles.median(later));
        }
        out.flush();
        return millis.getFirst() / millis.getLast();
    }

    private byte[] question() {
        Collections.shuffle(facts, random);
        ObjectNode json = JSON.createObjectNode();
        json.putArray("messages")
                .addObject()
                .put("role", "user")
                .put("content", String.join("\n", facts) + "\n\n" + DemoCommand.QUESTION);
        json.put("temperature", 0).put("max_tokens", MAX_TOKENS).put("stream", true);
        return JSON.writeValueAsBytes(json);
    }

    /**
     * @param start when the request was sent, all three by {@link System#nanoTime}
     * @param first when the first piece of text came; 0 if none did
     * @param end when the answer ended
     */
    private record Times(long start, long first, long end) {}

    private Times send(String request, byte[] body) throws IOException {
        String head = request + " HTTP/1.1\r\nHost: " + endpoint.getAuthority()
                + "\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: " + body.length
                + "\r\n\r\n";
        long start = System.nanoTime();
        try (Socket socket = new Socket()) {
            socket.connect(
                    new InetSocketAddress(endpoint.getHost(), endpoint.getPort() < 0 ? 80 : endpoint.getPort()),
                    (int) DEADLINE.toMillis());
            socket.setSoTimeout((int) DEADLINE.toMillis());
            socket.getOutputStream().write(head.getBytes(StandardCharsets.US_ASCII));
            socket.getOutputStream().write(body);
            BufferedReader answer =
                    new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
            String status = String.valueOf(answer.readLine());
            if (!status.startsWith("HTTP/1.1 200")) {
                throw new CommandFailedException(endpoint + " answered: " + status);
            }
            long first = 0;
            for (String line = answer.readLine(); line != null; line = answer.readLine()) {
                int text = line.indexOf(TEXT);
                if (first == 0 && text >= 0 && line.charAt(text + TEXT.length()) != '"') {
                    first = System.nanoTime();
                }
            }
            return new Times(start, first, System.nanoTime());
        }
    }
}
