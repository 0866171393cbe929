package baton.bench.gpu;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.pipe.WireId;
import baton.pipe.tcp.TcpTransport;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

class GpuCheckTest {
    private static final Path MODEL = Path.of("../models/tiny-ledger");

    private final ObjectNode report = JsonNodeFactory.instance.objectNode();
    private final List<String> saved = new ArrayList<>();

    private void run(boolean simulated, List<GpuStep> steps) throws Exception {
        new GpuCheck(MODEL, Optional.empty(), simulated, _ -> {}).run(steps, report, now -> saved.add(now.toString()));
    }

    @Test
    void allStepsOnASimulatedDevice() throws Exception {
        run(true, GpuCheck.parse(List.of()));
        assertThat(report.propertyNames())
                .containsExactly(
                        "device",
                        "tests",
                        "copies",
                        "ipc",
                        "products",
                        "golden",
                        "handovers",
                        "model_1b",
                        "nccl",
                        "torch");
        report.forEachEntry((name, step) -> assertThat(step.path("error").asString(""))
                .as("%s: %s", name, step)
                .isEmpty());
        assertThat(report.at("/device/capability").asInt()).isEqualTo(90);
        assertThat(report.at("/copies/device_bytes_per_second").asDouble()).isPositive();
        assertThat(report.at("/ipc/same_process/bytes_per_second").asDouble()).isPositive();
        assertThat(report.at("/products/products")).hasSize(1);
        assertThat(report.at("/golden/F32/same").asInt()).isOne();
        assertThat(report.at("/handovers/ways").valueStream())
                .hasSize(1)
                .allSatisfy(way ->
                        assertThat(way.path("same").asBoolean()).as("%s", way).isTrue())
                .allSatisfy(way -> assertThat(way.path("cached_tokens").asInt())
                        .as("%s", way)
                        .isEqualTo(35));
        assertThat(saved).hasSize(10).last().isEqualTo(report.toString());
    }

    /** The step's wire is NCCL's where there are two GPUs. */
    @Test
    void theWireStepMovesBytes() throws Exception {
        try (TcpTransport wires = new TcpTransport(WireId.Kind.TCP, PeerAccess.everyone(), Ticker.system())) {
            Programs.wire(wires, wires, report);
        }
        assertThat(report.path("bytes_per_second").asDouble()).isPositive();
    }

    @Test
    void anAnswerThatIsNotTheRecordedOneIsAnError(@TempDir Path model) throws Exception {
        JsonMapper json = JsonMapper.builder().build();
        try (Stream<Path> files = Files.list(MODEL)) {
            for (Path file : files.toList()) {
                Files.copy(file, model.resolve(file.getFileName()));
            }
        }
        Path golden = model.resolve("golden.json");
        JsonNode recorded = json.readTree(Files.readString(golden));
        for (JsonNode prompt : recorded.path("prompts")) {
            ArrayNode ids = (ArrayNode) prompt.path("output_ids");
            ids.set(1, ids.path(1).asInt() + 1);
        }
        Files.writeString(golden, recorded.toString());
        new GpuCheck(model, Optional.empty(), true, _ -> {}).run(List.of(GpuStep.GOLDEN), report, _ -> {});
        assertThat(report.at("/golden/error").asString()).contains("0 of 1 answers are as recorded");
    }

    @Test
    void aStepThatFailsDoesNotHideTheNext() throws Exception {
        // Without a GPU here; with one both have results.
        run(false, List.of(GpuStep.DEVICE, GpuStep.NCCL));
        assertThat(report.path("device").has("error") || report.path("device").has("name"))
                .isTrue();
        assertThat(report.path("device").path("error").asString("NVIDIA's driver"))
                .contains("NVIDIA's driver");
        assertThat(report.path("nccl").has(GpuCheck.LEFT_OUT)
                        || report.path("nccl").has("loads"))
                .isTrue();
    }
}
