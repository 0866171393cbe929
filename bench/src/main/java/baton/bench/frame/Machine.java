package baton.bench.frame;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Properties of a machine that decide which kernels are used.
 *
 * @param processor the model's name
 * @param instructionSets that libraries choose their kernels by, as Linux spells them; empty if they are not known
 * @param processors that this process may use
 * @param caps environment variables that are set and take instruction sets or kernels away, with their values
 */
public record Machine(
        String processor, Optional<List<String>> instructionSets, int processors, Map<String, String> caps) {
    private static final String UNKNOWN = "unknown";

    private static final List<String> SETS = List.of(
            "sse4_1",
            "sse4_2",
            "avx",
            "avx2",
            "fma",
            "f16c",
            "avx_vnni",
            "avx_vnni_int8",
            "avx_ne_convert",
            "avx512f",
            "avx512bw",
            "avx512dq",
            "avx512vl",
            "avx512_vnni",
            "avx512_bf16",
            "avx512_fp16",
            "avx10",
            "amx_tile",
            "amx_int8",
            "amx_bf16",
            "amx_fp16");

    private static final List<String> CAPS =
            List.of("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "OPENBLAS_CORETYPE", "BATON_KERNELS");

    /** The machine of this process. */
    public static Machine here() {
        return read(Path.of("/proc/cpuinfo"), System.getenv());
    }

    /** @param cpuinfo file in the format of Linux' /proc/cpuinfo; its first processor counts, missing fields are unknown */
    static Machine read(Path cpuinfo, Map<String, String> environment) {
        Map<String, String> caps = new LinkedHashMap<>();
        for (String name : CAPS) {
            Optional.ofNullable(environment.get(name)).ifPresent(value -> caps.put(name, value));
        }
        List<String> lines;
        try {
            lines = Files.readAllLines(cpuinfo);
        } catch (IOException e) {
            // Another system than Linux, or one that hides it.
            lines = List.of();
        }
        Optional<Set<String>> flags = field(lines, "flags").map(value -> Set.of(value.split("\\s+")));
        return new Machine(
                field(lines, "model name").orElse(UNKNOWN),
                flags.map(known -> SETS.stream().filter(known::contains).toList()),
                Runtime.getRuntime().availableProcessors(),
                caps);
    }

    private static Optional<String> field(List<String> lines, String name) {
        return lines.stream()
                .map(line -> line.split(":", 2))
                .filter(parts -> parts.length == 2 && parts[0].strip().equals(name))
                .map(parts -> parts[1].strip())
                .filter(value -> !value.isEmpty())
                .findFirst();
    }

    public void writeTo(ObjectNode node) {
        node.put("processor", processor);
        instructionSets.ifPresentOrElse(
                sets -> {
                    ArrayNode array = node.putArray("instruction_sets");
                    sets.forEach(array::add);
                },
                () -> node.put("instruction_sets", UNKNOWN));
        node.put("processors", processors);
        ObjectNode set = node.putObject("caps");
        caps.forEach(set::put);
    }
}
