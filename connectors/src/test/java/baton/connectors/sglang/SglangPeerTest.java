package baton.connectors.sglang;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.DType;
import baton.kv.FreePorts;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.CleanupMode;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;

/**
 * SGLang's KV managers for Mooncake are one side of a hand-over. {@code BATON_SGLANG_PYTHON} names an interpreter that has SGLang 0.5.23,
 * PyTorch and Mooncake's engine, by {@code PYTHONPATH} if need be.
 */
@Tag("peers")
@Timeout(300)
class SglangPeerTest {
    private static final KvLayout LAYOUT = new KvLayout(2, 2, 4, 16, DType.F32);
    private static final int BLOCKS = 64;
    private static final int TOKENS = 90;
    private static final long ROOM = 7_000_000_000_000_000_001L;
    private static final long BATCH_MILLIS = 60_000;

    @TempDir(cleanup = CleanupMode.ON_SUCCESS)
    Path directory;

    private String python = "";

    @BeforeEach
    void findPython() {
        python = Optional.ofNullable(System.getenv("BATON_SGLANG_PYTHON")).orElse("");
        assumeTrue(!python.isEmpty(), "BATON_SGLANG_PYTHON names no interpreter with SGLang");
    }

    /** The script {@code sglang_peer.py}. */
    private final class Peer implements AutoCloseable {
        private final Process process;
        private final BufferedReader output;

        private Peer(String role, int port) throws IOException {
            Path script = directory.resolve("sglang_peer.py");
            try (InputStream source =
                    Objects.requireNonNull(SglangPeerTest.class.getResourceAsStream("sglang_peer.py"))) {
                Files.write(script, source.readAllBytes());
            }
            process = new ProcessBuilder(
                            python,
                            script.toString(),
                            role,
                            "127.0.0.1",
                            "" + port,
                            "" + LAYOUT.layers(),
                            "" + LAYOUT.kvHeads(),
                            "" + LAYOUT.headDim(),
                            "" + LAYOUT.blockSize(),
                            "" + BLOCKS)
                    .redirectError(directory.resolve(role + ".log").toFile())
                    .start();
            output = process.inputReader();
            assertThat(answer().string("status")).contains("ready");
        }

        private void ask(String request) throws IOException {
            process.getOutputStream().write((request + "\n").getBytes(StandardCharsets.UTF_8));
            process.getOutputStream().flush();
        }

        private JsonFields answer() throws IOException {
            for (String line = output.readLine(); line != null; line = output.readLine()) {
                if (line.startsWith("{")) {
                    return JsonFields.parse("answer", line);
                }
            }
            throw new IOException("the script has ended: " + Files.readString(directory.resolve("prefill.log"))
                    + Files.readString(directory.resolve("decode.log")));
        }

        @Override
        public void close() throws Exception {
            process.destroyForcibly().waitFor(10, TimeUnit.SECONDS);
        }
    }

    private static FakeEngine engine(KvRole role, int port) {
        return new FakeEngine(
                new SglangConnector(),
                new ConnectorContext(
                        KvTransferConfig.builder("SglangConnector", role)
                                .extra("bootstrap_port", port)
                                .build(),
                        new ModelFingerprint("fake", "digest"),
                        LAYOUT,
                        Ticker.system()),
                BLOCKS);
    }

    private static FakeKvRequest request(long room, int port) {
        return new FakeKvRequest("cmpl-1-0", FakeKvRequest.counting(5, TOKENS), LAYOUT.blockSize())
                .withKvTransferParams(JsonFields.parse(
                        "",
                        "{\"bootstrap_host\": \"127.0.0.1\", \"bootstrap_port\": %d, \"bootstrap_room\": %d}"
                                .formatted(port, room)));
    }

    /** Keys of all layers, then values of all layers, in SGLang's order. */
    private static byte[] expected(int[] prompt, int tokens) {
        int unit = LAYOUT.headDim() * LAYOUT.dtype().bytes();
        int bytes = LAYOUT.blocksFor(tokens) * LAYOUT.blockSize() * LAYOUT.kvHeads() * unit;
        byte[] all = new byte[2 * LAYOUT.layers() * bytes];
        for (int layer = 0; layer < LAYOUT.layers(); layer++) {
            byte[] packed = FakeEngine.packedLayer(LAYOUT, prompt, tokens, layer);
            for (int i = 0; i < tokens * LAYOUT.kvHeads(); i++) {
                System.arraycopy(packed, 2 * i * unit, all, layer * bytes + i * unit, unit);
                System.arraycopy(packed, (2 * i + 1) * unit, all, (LAYOUT.layers() + layer) * bytes + i * unit, unit);
            }
        }
        return all;
    }

    private static void steps(FakeEngine engine, CompletableFuture<?> until) {
        long end = System.nanoTime() + BATCH_MILLIS * 1_000_000;
        while (!until.isDone() && System.nanoTime() - end < 0) {
            engine.idleStep();
            Thread.onSpinWait();
        }
        assertThat(until).isDone();
    }

    private static CompletableFuture<JsonFields> answer(Peer peer) {
        return CompletableFuture.supplyAsync(() -> {
            try {
                return peer.answer();
            } catch (IOException e) {
                throw new IllegalStateException(e);
            }
        });
    }

    /** Without a prefix here, and with two blocks of it. */
    @Test
    void pagesOfSglangsPrefillInstanceAreThoseOfThePrompt() throws Exception {
        int port = FreePorts.inARow(1);
        try (Peer peer = new Peer("prefill", port);
                FakeEngine decode = engine(KvRole.CONSUMER, 0)) {
            Path file = directory.resolve("sent");
            for (int prefix : new int[] {0, 2 * LAYOUT.blockSize()}) {
                long room = ROOM + prefix;
                FakeKvRequest request = request(room, port);
                Files.write(file, expected(request.prompt(), TOKENS));
                peer.ask("{\"room\": %d, \"pages\": %d, \"token\": 9, \"file\": \"%s\"}"
                        .formatted(room, LAYOUT.blocksFor(TOKENS), file));
                Running running = decode.admit(request, prefix);
                assertThat(running.externalTokens()).isEqualTo(TOKENS - prefix);
                assertThat(decode.awaitLoad(running).invalidBlocks()).isEmpty();
                assertThat(decode.holds(running, 0, TOKENS)).isTrue();
                assertThat(peer.answer().string("status")).contains("success");
                decode.finish(running);
            }
        }
    }

    @Test
    void sglangsDecodeInstanceGetsThePagesAndTheRow() throws Exception {
        int port = FreePorts.inARow(1);
        try (FakeEngine prefill = engine(KvRole.PRODUCER, port);
                Peer peer = new Peer("decode", FreePorts.inARow(1))) {
            FakeKvRequest request = request(ROOM, port);
            Path file = directory.resolve("received");
            peer.ask("{\"room\": %d, \"bootstrap\": \"127.0.0.1:%d\", \"pages\": %d, \"file\": \"%s\"}"
                    .formatted(ROOM, port, LAYOUT.blocksFor(TOKENS), file));
            CompletableFuture<JsonFields> answer = answer(peer);
            Running running = prefill.admit(request, 0);
            prefill.step(new Share(running, TOKENS));
            prefill.end(running, RequestEnd.LENGTH);
            steps(prefill, answer);
            assertThat(answer.join().string("status")).contains("success");
            assertThat(answer.join().value("row_room").map(JsonNode::asLong)).contains(ROOM);
            byte[] received = Files.readAllBytes(file);
            byte[] expected = expected(request.prompt(), TOKENS);
            int buffer = expected.length / (2 * LAYOUT.layers());
            int ofTokens = TOKENS * buffer / (LAYOUT.blocksFor(TOKENS) * LAYOUT.blockSize());
            assertThat(received).hasSameSizeAs(expected);
            for (int start = 0; start < expected.length; start += buffer) {
                assertThat(Arrays.copyOfRange(received, start, start + ofTokens))
                        .isEqualTo(Arrays.copyOfRange(expected, start, start + ofTokens));
            }
            steps(prefill, CompletableFuture.completedFuture(true));
            assertThat(prefill.usedBlocks()).isZero();
        }
    }

    /** The answer frees SGLang's pages; the prompt that comes then is not kept. */
    @Test
    void sglangsDecodeInstanceThatGivesUpIsAnswered() throws Exception {
        int port = FreePorts.inARow(1);
        try (FakeEngine prefill = engine(KvRole.PRODUCER, port);
                Peer peer = new Peer("decode", FreePorts.inARow(1))) {
            peer.ask("{\"room\": %d, \"bootstrap\": \"127.0.0.1:%d\", \"pages\": %d, \"file\": \"-\", \"abort\": true}"
                    .formatted(ROOM, port, LAYOUT.blocksFor(TOKENS)));
            CompletableFuture<JsonFields> answer = answer(peer);
            steps(prefill, answer);
            assertThat(answer.join().bool("released")).contains(true);
            Running running = prefill.admit(request(ROOM, port), 0);
            prefill.step(new Share(running, TOKENS));
            prefill.end(running, RequestEnd.LENGTH);
            prefill.idleStep();
            assertThat(prefill.usedBlocks()).isZero();
        }
    }
}
