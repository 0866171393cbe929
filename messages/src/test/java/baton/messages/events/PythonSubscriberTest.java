package baton.messages.events;

import static baton.messages.events.KvEventCodecTest.FIRST;
import static baton.messages.events.KvEventCodecTest.SECOND;
import static baton.messages.events.KvEventCodecTest.THIRD;
import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.JsonFields;
import baton.kv.KvEvent;
import baton.kv.KvEventsConfig;
import baton.kv.Ticker;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.InstantSource;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * A process with pyzmq and msgspec, which vLLM uses, reads events. With vLLM it decodes them with vLLM's classes, and encodes them again: to
 * the same bytes. The environment variable {@code BATON_PYTHON} names the interpreter, else it is {@code python3}.
 */
@Timeout(300)
class PythonSubscriberTest {
    private static final String PYTHON =
            Optional.ofNullable(System.getenv("BATON_PYTHON")).orElse("python3");
    private static final List<String> MODULES = List.of("zmq", "msgspec");
    private static final KvEvent.Place PLACE =
            new KvEvent.Place(Optional.of(1), Optional.of("REMOTE"), Optional.of("1:fs"));

    private static final List<List<KvEvent>> BATCHES = List.of(
            List.of(new KvEvent.BlockStored(
                    List.of(FIRST, SECOND),
                    Optional.empty(),
                    Stream.iterate(0, i -> i + 1).limit(32).toList(),
                    16,
                    "GPU")),
            List.of(
                    new KvEvent.BlockStored(
                            List.of(THIRD),
                            Optional.of(FIRST),
                            List.of(1, 200, 70_000),
                            3,
                            Optional.of(new KvEvent.Lora(2, "adapter")),
                            Optional.empty(),
                            new KvEvent.Details(
                                    Optional.of(List.of(List.of("adapter", "salt"))),
                                    PLACE,
                                    Optional.of("full_attention"),
                                    Optional.of(4096),
                                    Optional.of("session"))),
                    new KvEvent.BlockRemoved(List.of(THIRD), Optional.of("STORAGE"), PLACE)),
            List.of(
                    new KvEvent.BlockStored(
                            List.of(FIRST, SECOND),
                            Optional.empty(),
                            List.of(1, 2),
                            1,
                            Optional.empty(),
                            Optional.of("CPU"),
                            new KvEvent.Details(
                                    Optional.of(List.of(List.of(), List.of("s"))),
                                    KvEvent.Place.UNKNOWN,
                                    Optional.empty(),
                                    Optional.empty(),
                                    Optional.empty())),
                    new KvEvent.BlockRemoved(List.of(FIRST), "GPU"),
                    new KvEvent.AllBlocksCleared()));

    @TempDir
    Path directory;

    @ParameterizedTest
    @EnumSource
    void pyzmqReadsEventsAndPastOnes(KvEventCodec.Hashes hashes) throws Exception {
        for (String module : MODULES) {
            assumeTrue(imports(module), PYTHON + " has no module " + module + " (BATON_PYTHON names the interpreter)");
        }
        Path script = directory.resolve("subscriber.py");
        try (InputStream in = Objects.requireNonNull(PythonSubscriberTest.class.getResourceAsStream("subscriber.py"))) {
            Files.copy(in, script);
        }
        KvEventsConfig config = KvEventsConfig.fromJson(JsonFields.parse(
                "",
                "{\"endpoint\": \"tcp://*:0\", \"replay_endpoint\": \"tcp://127.0.0.1:0\", \"topic\": \"kv@baton\"}"));
        try (KvEventPublisher publisher = KvEventPublisher.start(
                config,
                new KvEventCodec(hashes),
                KvEventAccess.of(false, Optional.empty(), Optional.empty(), Map.of(), Ticker.system()),
                Ticker.system(),
                InstantSource.fixed(Instant.ofEpochSecond(1_700_000_000L, 250_000_000)))) {
            Process python = new ProcessBuilder(
                            PYTHON,
                            script.toString(),
                            publisher.source().endpoint().toString(),
                            publisher.source().replayEndpoint().orElseThrow().toString(),
                            "kv@",
                            Integer.toString(BATCHES.size()))
                    .redirectError(ProcessBuilder.Redirect.INHERIT)
                    .start();
            try (BufferedReader out = python.inputReader()) {
                while (publisher.subscribers() == 0 && python.isAlive()) {
                    LockSupport.parkNanos(1_000_000);
                }
                BATCHES.forEach(publisher::publish);
                List<String> lines = out.lines().toList();
                lines.forEach(System.out::println);
                assertThat(python.waitFor(60, TimeUnit.SECONDS)).isTrue();
                assertThat(python.exitValue()).isZero();
                check(hashes, lines);
            } finally {
                python.destroyForcibly();
            }
        }
    }

    private static void check(KvEventCodec.Hashes hashes, List<String> lines) {
        List<String> batches =
                lines.stream().filter(line -> line.startsWith("batch ")).toList();
        assertThat(batches).hasSize(BATCHES.size());
        for (int i = 0; i < batches.size(); i++) {
            assertThat(batches.get(i)).startsWith("batch kv@baton " + i + " same [1700000000.25,[{\"type\":\"Block");
        }
        String first = hashes == KvEventCodec.Hashes.INT
                ? "\"block_hashes\":[3262291359910021016,"
                // Base64, as JSON has no bytes.
                : "\"block_hashes\":[\"/o+l3aMhDQyiAx43y+OwARhnc80ccQvrLUX8tR1DR5g=\",";
        assertThat(batches.getFirst())
                .contains(first)
                .contains("\"parent_block_hash\":null,\"token_ids\":[0,1,2,3,")
                .contains("\"block_size\":16,\"lora_id\":null,\"medium\":\"GPU\",\"lora_name\":null}],0]");
        assertThat(batches.get(1))
                .contains(
                        "\"lora_id\":2,\"medium\":null,\"lora_name\":\"adapter\",\"extra_keys\":[[\"adapter\",\"salt\"]],"
                                + "\"group_idx\":1,\"kv_cache_spec_kind\":\"full_attention\","
                                + "\"kv_cache_spec_sliding_window\":4096,\"locality\":\"REMOTE\",\"ownership\":\"1:fs\","
                                + "\"session_id\":\"session\"}")
                .contains("\"medium\":\"STORAGE\",\"group_idx\":1,\"locality\":\"REMOTE\",\"ownership\":\"1:fs\"}");
        assertThat(batches.getLast())
                .contains("\"extra_keys\":[null,[\"s\"]]")
                .contains("{\"type\":\"AllBlocksCleared\"}");
        assertThat(lines.stream().filter(line -> line.startsWith("replay ")).toList())
                .hasSize(3)
                .satisfies(replays -> {
                    assertThat(replays.get(0)).startsWith("replay [\"\", \"kv@baton\", 1, ");
                    assertThat(replays.get(1)).startsWith("replay [\"\", \"kv@baton\", 2, ");
                    assertThat(replays.get(2)).isEqualTo("replay [\"\", \"\", -1, 0]");
                });
    }

    private static boolean imports(String module) throws InterruptedException {
        try {
            Process python = new ProcessBuilder(PYTHON, "-c", "import " + module)
                    .redirectErrorStream(true)
                    .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                    .start();
            try {
                return python.waitFor(60, TimeUnit.SECONDS) && python.exitValue() == 0;
            } finally {
                python.destroyForcibly();
            }
        } catch (IOException e) {
            return false;
        }
    }
}
