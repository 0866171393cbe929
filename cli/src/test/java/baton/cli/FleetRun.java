package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.Ledgers.Case;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Completions of tiny-ledger's recorded prompts through one URL, from several clients at once, of which every second is streamed. Instances compute
 * in fp32 and are served as {@code tiny-ledger}.
 *
 * @param url of a router, a gateway or an instance
 * @param clients requests under way at once
 * @param decodes instances that take prompts over; their metrics are read before and after
 * @param asIds whether prompts are token ids: for systems with a tokenizer that puts no special token in front of a text
 */
record FleetRun(URI url, int requests, int clients, List<Instance> decodes, boolean asIds) {
    private static final String BOS = "<|bos|>";
    private static final int SPARE_TOKENS = 4;

    FleetRun(URI url, int requests, int clients, List<Instance> decodes) {
        this(url, requests, clients, decodes, false);
    }

    /** An event in the middle of a run. */
    interface Event {
        void happen() throws Exception;
    }

    /**
     * How requests have ended.
     *
     * @param examples the first wrong answers and failures
     * @param prompts where the decode instances' prompt tokens came from meanwhile
     */
    record Counts(int right, int wrong, int failed, List<String> examples, Prompts prompts) {
        Counts assertAllRight() {
            assertThat(wrong + failed).as(toString()).isZero();
            return this;
        }

        /** A request may fail while an instance is killed; no answer may be wrong. */
        Counts assertNoneWrongAndFailedAtMost(int most) {
            assertThat(wrong).as(toString()).isZero();
            assertThat(failed).as(toString()).isLessThanOrEqualTo(most);
            return this;
        }

        /** The decode instances computed one token of each prompt at most, and took others over. */
        Counts assertHandedOver() {
            assertThat(prompts.computed()).as(toString()).isLessThanOrEqualTo(right + wrong + failed);
            assertThat(prompts.transferred()).as(toString()).isPositive();
            return this;
        }
    }

    /** Sends all requests. */
    Counts ask() throws Exception {
        return ask(() -> {});
    }

    /** The same, with an event when half of them have been sent, while others go on. */
    Counts ask(Event half) throws Exception {
        List<Prompts> before = prompts();
        AtomicInteger next = new AtomicInteger();
        AtomicInteger right = new AtomicInteger();
        Queue<String> wrong = new ConcurrentLinkedQueue<>();
        Queue<String> failed = new ConcurrentLinkedQueue<>();
        CountDownLatch halfway = new CountDownLatch(1);
        List<Case> cases = Ledgers.clear();
        try (HttpClient http = HttpClient.newBuilder()
                        .version(HttpClient.Version.HTTP_1_1)
                        .build();
                ExecutorService threads = Executors.newVirtualThreadPerTaskExecutor()) {
            List<Future<?>> asking = new ArrayList<>();
            for (int client = 0; client < clients; client++) {
                asking.add(threads.submit(() -> {
                    for (int i = next.getAndIncrement(); i < requests; i = next.getAndIncrement()) {
                        if (i == requests / 2) {
                            halfway.countDown();
                        }
                        Case asked = cases.get(i % cases.size());
                        String name = "request " + i + " (" + asked.name() + ")";
                        try {
                            String text = ask(http, asked, i % 2 == 1).strip();
                            if (text.equals(asked.text())) {
                                right.incrementAndGet();
                            } else {
                                wrong.add(name + ": " + text);
                            }
                        } catch (IOException | RuntimeException e) {
                            failed.add(name + ": " + e);
                        }
                    }
                    return null;
                }));
            }
            try {
                assertThat(halfway.await(Instances.DEADLINE.toSeconds() * 10, TimeUnit.SECONDS))
                        .isTrue();
                half.happen();
                for (Future<?> each : asking) {
                    each.get();
                }
            } finally {
                threads.shutdownNow();
                http.shutdownNow();
            }
        }
        List<String> examples = new ArrayList<>();
        wrong.stream().limit(3).forEach(examples::add);
        failed.stream().limit(3).forEach(examples::add);
        Prompts since = new Prompts(0, 0, 0);
        List<Prompts> after = prompts();
        for (int i = 0; i < after.size(); i++) {
            since = since.plus(after.get(i).since(before.get(i)));
        }
        return new Counts(right.get(), wrong.size(), failed.size(), examples, since);
    }

    private List<Prompts> prompts() throws IOException, InterruptedException {
        List<Prompts> all = new ArrayList<>();
        for (Instance decode : decodes) {
            all.add(decode.prompts());
        }
        return all;
    }

    /** The text of the answer. */
    private String ask(HttpClient http, Case asked, boolean stream) throws IOException, InterruptedException {
        ObjectNode body = Instances.JSON
                .createObjectNode()
                .put("model", "tiny-ledger")
                .put("max_tokens", asked.answer().length + SPARE_TOKENS)
                .put("temperature", 0)
                .put("stream", stream);
        if (asIds) {
            Arrays.stream(asked.prompt()).forEach(body.putArray("prompt")::add);
        } else {
            // A tokenizer adds the token itself.
            body.put("prompt", asked.promptText().substring(BOS.length()));
        }
        HttpResponse<String> response = http.send(
                HttpRequest.newBuilder(url.resolve("/v1/completions"))
                        .timeout(Instances.DEADLINE)
                        .header("Content-Type", "application/json")
                        .POST(HttpRequest.BodyPublishers.ofString(body.toString()))
                        .build(),
                BodyHandlers.ofString());
        if (response.statusCode() != 200) {
            throw new IOException("HTTP " + response.statusCode() + ": " + response.body());
        }
        if (!stream) {
            return text(response.body());
        }
        StringBuilder text = new StringBuilder();
        boolean done = false;
        for (String line : response.body().lines().toList()) {
            if (line.equals("data: [DONE]")) {
                done = true;
            } else if (line.startsWith("data:")) {
                text.append(text(line.substring("data:".length())));
            }
        }
        if (!done) {
            throw new IOException("a stream without an end: " + response.body());
        }
        return text.toString();
    }

    private static String text(String json) throws IOException {
        JsonNode answer = Instances.JSON.readTree(json);
        if (answer.has("error")) {
            throw new IOException(json);
        }
        return answer.path("choices").path(0).path("text").asString("");
    }
}
