package baton.bench.frame;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

class MachineTest {
    @TempDir
    private Path directory;

    @Test
    void processorFeaturesThatDecideTheKernelsAreNamed() throws IOException {
        Path cpuinfo = Files.writeString(directory.resolve("cpuinfo"), """
                processor\t: 0
                model name\t: A Processor: 3 GHz
                flags\t\t: fpu sse4_2 avx2 fma amx_bf16x avx512_vnni avx_vnni

                processor\t: 1
                model name\t: Another
                flags\t\t: avx512f
                """);
        Machine machine = Machine.read(cpuinfo, Map.of("ONEDNN_MAX_CPU_ISA", "AVX2", "HOME", "x"));

        assertThat(machine.processor()).isEqualTo("A Processor: 3 GHz");
        assertThat(machine.instructionSets()).contains(List.of("sse4_2", "avx2", "fma", "avx_vnni", "avx512_vnni"));
        assertThat(machine.caps()).containsExactly(Map.entry("ONEDNN_MAX_CPU_ISA", "AVX2"));
        assertThat(printed(machine))
                .contains("A Processor: 3 GHz, 3 threads", "avx2 fma avx_vnni", "caps: ONEDNN_MAX_CPU_ISA=AVX2");
        assertThat(json(machine).at("/instruction_sets/1").asString()).isEqualTo("avx2");
        assertThat(json(machine).at("/caps/ONEDNN_MAX_CPU_ISA").asString()).isEqualTo("AVX2");
    }

    @Test
    void withoutCpuinfoItIsUnknown() {
        Machine machine = Machine.read(directory.resolve("none"), Map.of());

        assertThat(printed(machine)).contains("unknown, 3 threads", "instruction sets: unknown", "caps: none");
        assertThat(json(machine).at("/processor").asString()).isEqualTo("unknown");
        assertThat(json(machine).at("/instruction_sets").asString()).isEqualTo("unknown");
    }

    private static String printed(Machine machine) {
        ObjectNode figures = JsonMapper.builder().build().createObjectNode().put("threads", 3);
        figures.set("machine", json(machine));
        return new Layout().machine().line("{threads}").text(figures);
    }

    private static ObjectNode json(Machine machine) {
        ObjectNode node = JsonMapper.builder().build().createObjectNode();
        machine.writeTo(node);
        return node;
    }
}
