package baton.engine.model;

import baton.engine.kernel.Bf16Rate;
import baton.engine.kernel.Kernels;
import baton.engine.kernel.ThreadTeam;
import baton.engine.kernel.WeightType;
import baton.engine.model.Recipe.Rotation;
import baton.engine.model.Weights.Owned;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.memory.Assembler.Width;
import baton.memory.Processor;
import java.lang.foreign.Arena;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.function.Supplier;

/**
 * Which kernels a model is computed with on a processor, and why. In the order of preference: machine code for a matrix unit (AMX), which
 * nothing else comes near; for AVX-512 with its products of bf16, where they are fast, then for AVX-512 alone, then for AVX2; LibTorch's
 * operators, which are right everywhere.
 *
 * @param kind which
 * @param reasons one line each: the kernels that were taken, and the others with the reason
 */
public record KernelChoice(Kind kind, List<String> reasons) {
    /** Forces the choice: a system property, and an environment variable. */
    static final String PROPERTY = "baton.kernels";

    static final String VARIABLE = "BATON_KERNELS";

    /** Caps the instructions that oneDNN uses, and so the choice here. */
    private static final String ONEDNN_CAP = "ONEDNN_MAX_CPU_ISA";

    private static final String ATEN_CAP = "ATEN_CPU_CAPABILITY";

    /** Products of bf16 in the time of one of fp32; each of them multiplies twice as many numbers. */
    private static final double FAST_BF16 = 0.75;

    public KernelChoice {
        reasons = List.copyOf(reasons);
    }

    /** Whether weights are pairs, see {@link WeightType#inPairs}. */
    boolean multipliesPairs() {
        return kind == Kind.AMX || kind == Kind.AVX512_BF16;
    }

    /** Kernels that there are. */
    public enum Kind {
        AMX,
        AVX512_BF16,
        AVX512,
        AVX2,
        LIBTORCH;

        String label() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    /**
     * Chooses for this process.
     *
     * @throws ConfigException if the forced kernels cannot be had, or no kernels compute the model
     */
    public static KernelChoice here(ModelConfig model, DType dtype, Quantization quantization) {
        return choose(
                Processor.current(),
                System.getenv(),
                Optional.ofNullable(System.getProperty(PROPERTY)),
                Probes.HERE,
                model,
                dtype,
                quantization);
    }

    /** The kinds of kernels to try on this processor, where it has the instructions. */
    interface Probes {
        Probes HERE = new Probes() {
            @Override
            public double bf16Rate() {
                return Bf16Rate.here();
            }

            @Override
            public Optional<String> whyNoVectors(Width width) {
                return whyNot(() -> Kernels.of(width));
            }

            @Override
            public Optional<String> whyNoPairs() {
                return whyNot(Kernels::withPairs);
            }

            @Override
            public Optional<String> whyNoTiles() {
                return whyNot(Kernels::withTiles);
            }

            @Override
            public Optional<String> whyNoLibTorch() {
                return CpuModels.whyNoLibTorch();
            }
        };

        /** See {@link Bf16Rate}. */
        double bf16Rate();

        /** Why the kernels of vectors of this width cannot be had; empty if they can. */
        Optional<String> whyNoVectors(Width width);

        /** Why the kernels of a processor with AVX512_BF16 cannot be had; empty if they can. */
        Optional<String> whyNoPairs();

        /** Why the system does not let this process use the matrix unit; empty if it does. */
        Optional<String> whyNoTiles();

        /** Why LibTorch cannot be loaded; empty if its classes are there. Does not load it. */
        Optional<String> whyNoLibTorch();
    }

    static KernelChoice choose(
            Processor processor,
            Map<String, String> environment,
            Optional<String> property,
            Probes probes,
            ModelConfig model,
            DType dtype,
            Quantization quantization) {
        String field = property.isPresent() ? PROPERTY : VARIABLE;
        String forced = property.or(() -> Optional.ofNullable(environment.get(VARIABLE)))
                .map(text -> text.toLowerCase(Locale.ROOT))
                .orElse("auto");
        List<String> refused = new ArrayList<>();
        for (Kind kind : Kind.values()) {
            boolean wanted = kind.label().equals(forced);
            if (!wanted && !forced.equals("auto")) {
                continue;
            }
            Optional<String> why = refusal(kind, processor, environment, probes, model, dtype, quantization);
            if (why.isEmpty() && !wanted && kind == Kind.AVX512_BF16) {
                why = slowness(probes.bf16Rate());
            }
            if (why.isEmpty()) {
                List<String> reasons = new ArrayList<>();
                reasons.add(describe(kind, dtype, quantization) + (wanted ? ", as " + field + " says" : ""));
                reasons.addAll(refused);
                return new KernelChoice(kind, reasons);
            }
            if (wanted) {
                throw new ConfigException(field, "is '%s', but %s".formatted(forced, why.get()));
            }
            refused.add("not %s: %s".formatted(kind.label(), why.get()));
        }
        if (!forced.equals("auto")) {
            throw ConfigException.unsupported(field, forced, "auto, amx, avx512_bf16, avx512, avx2, libtorch");
        }
        String why = "which nothing here computes: " + String.join("; ", refused);
        throw quantization == Quantization.INT8
                ? new ConfigException("quantization", "is 'int8', " + why)
                : new ConfigException("dtype", "is '%s', %s".formatted(dtype.torchName(), why));
    }

    private static String describe(Kind kind, DType dtype, Quantization quantization) {
        String weights = quantization == Quantization.INT8 ? "8-bit weights" : dtype.torchName() + " weights";
        return switch (kind) {
            case AMX ->
                "amx: machine code, %s, multiplied in bfloat16 on the matrix unit, summed in float32"
                        .formatted(weights);
            case AVX512_BF16 ->
                "avx512_bf16: machine code, %s, multiplied by rows in bfloat16, summed in float32".formatted(weights);
            case AVX512 -> "avx512: machine code, %s, computed in float32".formatted(weights);
            case AVX2 -> "avx2: machine code, %s, computed in float32".formatted(weights);
            case LIBTORCH -> "libtorch: LibTorch's operators, %s".formatted(weights);
        };
    }

    /** Why these kernels cannot be taken. */
    private static Optional<String> refusal(
            Kind kind,
            Processor processor,
            Map<String, String> environment,
            Probes probes,
            ModelConfig model,
            DType dtype,
            Quantization quantization) {
        Optional<String> cap = Optional.ofNullable(environment.get(ONEDNN_CAP))
                .map(text -> text.toUpperCase(Locale.ROOT))
                .filter(text -> !text.equals("DEFAULT") && !text.equals("ALL"));
        return switch (kind) {
            case AMX -> {
                if (dtype != DType.BF16) {
                    yield Optional.of("it computes in bfloat16, the model in " + dtype.torchName());
                }
                if (!processor.has("amx_tile", "amx_bf16", "avx512_bf16", "avx512bw")) {
                    yield Optional.of("the processor has no AMX");
                }
                yield cap.filter(text -> !text.contains("AMX"))
                        .map(text -> ONEDNN_CAP + "=" + text)
                        .or(() -> avx512(processor, environment, Optional.empty(), probes, model))
                        .or(probes::whyNoTiles);
            }
            case AVX512_BF16 -> {
                if (dtype != DType.BF16) {
                    yield Optional.of("it multiplies bfloat16, the model is in " + dtype.torchName());
                }
                if (!processor.has("avx512_bf16")) {
                    yield Optional.of("the processor has no AVX512_BF16");
                }
                yield cap.filter(text -> text.equals("AVX512_CORE") || text.equals("AVX512_CORE_VNNI"))
                        .map(text -> ONEDNN_CAP + "=" + text)
                        .or(() -> avx512(processor, environment, cap, probes, model))
                        .or(probes::whyNoPairs);
            }
            case AVX512 -> avx512(processor, environment, cap, probes, model);
            case AVX2 -> {
                if (!processor.has("avx2", "fma", "f16c")) {
                    yield Optional.of("the processor has no AVX2 with FMA and F16C");
                }
                yield cap.filter(text -> text.equals("SSE41") || text.equals("AVX"))
                        .map(text -> ONEDNN_CAP + "=" + text)
                        .or(() -> shape(model))
                        .or(() -> probes.whyNoVectors(Width.YMM));
            }
            case LIBTORCH -> {
                if (quantization == Quantization.INT8) {
                    yield Optional.of("LibTorch multiplies 8-bit integers by its reference loops here");
                }
                yield dtype == DType.F16
                        ? Optional.of("LibTorch's operators compute in bfloat16 and float32 here")
                        : probes.whyNoLibTorch();
            }
        };
    }

    private static Optional<String> avx512(
            Processor processor,
            Map<String, String> environment,
            Optional<String> cap,
            Probes probes,
            ModelConfig model) {
        if (!processor.has("avx512f", "avx512dq", "avx2", "fma")) {
            return Optional.of("the processor has no AVX-512");
        }
        if ("avx2".equals(environment.get(ATEN_CAP))) {
            return Optional.of(ATEN_CAP + "=avx2");
        }
        return cap.filter(text -> !text.startsWith("AVX512") && !text.startsWith("AVX10"))
                .map(text -> ONEDNN_CAP + "=" + text)
                .or(() -> shape(model))
                .or(() -> probes.whyNoVectors(Width.ZMM));
    }

    private static Optional<String> slowness(double bf16Rate) {
        return bf16Rate >= FAST_BF16
                ? Optional.empty()
                : Optional.of(
                        "the processor does %.2f products of bfloat16 in the time of one of float32, from %.2f on it pays"
                                .formatted(bf16Rate, FAST_BF16));
    }

    private static Optional<String> shape(ModelConfig model) {
        // Of the elements of an entry in the cache 16 are converted at once.
        int multiple = model.recipe().latent().isPresent() ? 16 : 8;
        if (model.headDim() % multiple != 0 || model.hiddenSize() % 4 != 0) {
            return Optional.of("head_dim=%d must be a multiple of %d and hidden_size=%d of 4"
                    .formatted(model.headDim(), multiple, model.hiddenSize()));
        }
        for (Rotation rotation : model.recipe().rotations()) {
            int turned = rotation.elements(model.headDim());
            if (turned % 8 != 0 && !rotation.ofNeighbours()) {
                return Optional.of(
                        "%d of a head's elements are turned, which must be a multiple of 8".formatted(turned));
            }
        }
        return Optional.empty();
    }

    private static Optional<String> whyNot(Supplier<Kernels> kernels) {
        try {
            Kernels _ = kernels.get();
            return Optional.empty();
        } catch (IllegalStateException e) {
            return Optional.of(String.valueOf(e.getMessage()));
        }
    }

    /** The kernels of one rank. */
    ModelKernels make(DType dtype, Quantization quantization, int threads, Arena arena, Owned owned) {
        return switch (kind) {
            case AMX -> panels(Kernels.withTiles(), dtype, pairs(quantization), threads, arena, owned);
            case AVX512_BF16 -> panels(Kernels.withPairs(), dtype, pairs(quantization), threads, arena, owned);
            case AVX512 -> panels(Kernels.of(Width.ZMM), dtype, weights(dtype, quantization), threads, arena, owned);
            case AVX2 -> panels(Kernels.of(Width.YMM), dtype, weights(dtype, quantization), threads, arena, owned);
            case LIBTORCH -> new TorchKernels(dtype, new OmpTeam(threads, arena), arena, owned);
        };
    }

    private static WeightType pairs(Quantization quantization) {
        return switch (quantization) {
            case INT8 -> WeightType.INT8_PAIRS;
            case NONE -> WeightType.BF16_PAIRS;
        };
    }

    private static WeightType weights(DType dtype, Quantization quantization) {
        return switch (quantization) {
            case INT8 -> WeightType.INT8;
            case NONE -> WeightType.of(dtype);
        };
    }

    private static ModelKernels panels(
            Kernels kernels, DType dtype, WeightType weights, int threads, Arena arena, Owned owned) {
        return new PanelKernels(kernels, dtype, weights, new ThreadTeam(threads), arena, owned);
    }
}
