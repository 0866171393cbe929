package baton.engine.model;

import baton.memory.Processor;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.extension.ConditionEvaluationResult;
import org.junit.jupiter.api.extension.ExecutionCondition;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * Skips all tests where the environment has LibTorch run instruction sets that the processor lacks, or those that LibTorch would choose
 * without it. {@code ONEDNN_MAX_CPU_ISA} is a
 * cap, but {@code ATEN_CPU_CAPABILITY} and {@code OPENBLAS_CORETYPE} choose code unchecked, and an illegal instruction ends the JVM.
 */
public final class PretendedProcessor implements ExecutionCondition {
    private static final List<String> AVX512 = List.of("avx512f", "avx512bw", "avx512dq", "avx512vl");
    private static final List<String> AVX2 = List.of("avx2", "fma");

    private static final Map<String, List<String>> NEEDED = Map.of(
            "ATEN_CPU_CAPABILITY=avx2", AVX2,
            "ATEN_CPU_CAPABILITY=avx512", AVX512,
            "OPENBLAS_CORETYPE=HASWELL", AVX2,
            "OPENBLAS_CORETYPE=SKYLAKEX", AVX512,
            "OPENBLAS_CORETYPE=COOPERLAKE",
                    Stream.concat(AVX512.stream(), Stream.of("avx512_bf16")).toList());

    @Override
    public ConditionEvaluationResult evaluateExecutionCondition(ExtensionContext context) {
        List<String> missing = missing(System.getenv(), Processor.current());
        if (missing.isEmpty() && isItself(System.getenv(), Processor.current())) {
            return ConditionEvaluationResult.disabled(
                    "does not apply: the processor has no more than AVX2, so that tests without the cap have run the same code");
        }
        if (missing.isEmpty()) {
            return ConditionEvaluationResult.enabled("the processor has the features that the environment asks for");
        }
        return ConditionEvaluationResult.disabled(
                "the processor lacks " + String.join(", ", missing) + ", which the environment has LibTorch use");
    }

    /** Whether the cap of these variables lies above all that LibTorch would choose. */
    static boolean isItself(Map<String, String> environment, Processor processor) {
        return "avx2".equals(environment.get("ATEN_CPU_CAPABILITY"))
                && processor.has("avx2")
                && !processor.has("avx512f")
                && !processor.has("avx_vnni");
    }

    /** Instruction sets that code chosen by these variables needs and the processor lacks, sorted; none on another platform. */
    static List<String> missing(Map<String, String> environment, Processor processor) {
        if (!processor.platform().isX86() || !processor.platform().isLinux()) {
            return List.of();
        }
        return environment.entrySet().stream()
                .flatMap(variable ->
                        NEEDED.getOrDefault(variable.getKey() + "=" + variable.getValue(), List.of()).stream())
                .filter(set -> !processor.has(set))
                .distinct()
                .sorted()
                .toList();
    }
}
