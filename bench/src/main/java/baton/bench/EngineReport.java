package baton.bench;

import baton.engine.model.MachineLimits;
import baton.engine.model.MachineLimits.Products;
import baton.engine.model.OperatorRate;
import baton.engine.model.Quantization;
import baton.kv.DType;
import java.io.PrintWriter;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.function.Function;
import java.util.function.ToDoubleFunction;
import java.util.stream.Stream;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Results of {@link EngineBench}.
 *
 * @param threads threads of the computation
 * @param limits of each round
 * @param leftOut cases that were not measured, with the reason, a line each
 * @param against comparison with another server, if there was one
 */
public record EngineReport(
        Machine machine,
        int threads,
        List<MachineLimits> limits,
        List<ModelReport> models,
        List<String> leftOut,
        Optional<AgainstReport> against) {
    private static final String HEADING = "  %-24s %10s %10s %8s %10s %10s %8s %10s %10s%n";

    /**
     * @param parameters weights of the model, a shared embedding counted once
     * @param kernels kernels that the model's runner uses, one line each
     * @param operators the best rates of its operators
     * @param serving requests through the whole engine, if they were measured
     */
    public record ModelReport(
            String name,
            long parameters,
            DType dtype,
            Quantization quantization,
            List<String> kernels,
            List<OperatorRate> operators,
            List<Prefill> prefills,
            List<Decode> decodes,
            Optional<ServingReport> serving) {
        ModelReport with(ServingReport measured) {
            return new ModelReport(
                    name,
                    parameters,
                    dtype,
                    quantization,
                    kernels,
                    operators,
                    prefills,
                    decodes,
                    Optional.of(measured));
        }
    }

    /**
     * A first chunk of one sequence.
     *
     * @param flops operations that it takes
     * @param shareBeside of the rate of matrix products that were done for as long right before and after it, at the median; empty
     *     if there was no time for them
     */
    public record Prefill(int tokens, Timing timing, double flops, OptionalDouble shareBeside) {
        static Prefill of(int tokens, double flops, List<Double> seconds, List<Beside> beside) {
            List<Double> shares = beside.stream()
                    .map(pass -> flops / pass.seconds() / pass.gemmFlops())
                    .toList();
            return new Prefill(
                    tokens,
                    Timing.of(seconds),
                    flops,
                    shares.isEmpty() ? OptionalDouble.empty() : OptionalDouble.of(Timing.median(shares)));
        }

        public double tokensPerSecond() {
            return tokens / timing.best();
        }

        public double flopsPerSecond() {
            return flops / timing.best();
        }
    }

    /**
     * A pass between matrix products.
     *
     * @param gemmFlops operations a second of the products before and after it
     */
    record Beside(double seconds, double gemmFlops) {}

    /**
     * One token of each of {@code batch} sequences.
     *
     * @param context positions that each attends to
     * @param bytes bytes that a step reads at least
     */
    public record Decode(int batch, int context, Timing timing, double bytes) {
        public double tokensPerSecond() {
            return batch / timing.best();
        }

        public double bytesPerSecond() {
            return bytes / timing.best();
        }
    }

    /** The same report with a comparison and the cases that it leaves out. */
    public EngineReport with(AgainstReport measured) {
        return new EngineReport(
                machine,
                threads,
                limits,
                models,
                Stream.concat(leftOut.stream(), measured.leftOut().stream()).toList(),
                Optional.of(measured));
    }

    /** The limit of prefill: operations a second of products in the faster type, in the best round. */
    public double gemmFlops() {
        return best(MachineLimits::gemmFlops);
    }

    /** The type of the products that are the limit of prefill. */
    public DType gemmDType() {
        return limits.stream()
                .max(Comparator.comparingDouble(MachineLimits::gemmFlops))
                .orElseThrow()
                .gemmDType();
    }

    /** The limit of decode: bytes a second of the fastest way to read, in its best round. */
    public double readBytesPerSecond() {
        return best(MachineLimits::bytesPerSecond);
    }

    /** The share of the GEMM rate, both at their best, that a prefill reaches. */
    public double share(Prefill prefill) {
        return prefill.flopsPerSecond() / gemmFlops();
    }

    /** The share of the rate of LibTorch's own products, both at their best. */
    public double shareOfLinear(Prefill prefill) {
        return prefill.flopsPerSecond() / best(MachineLimits::linearFlops);
    }

    /** The share of the memory read rate that a decode step reaches. */
    public double share(Decode decode) {
        return decode.bytesPerSecond() / readBytesPerSecond();
    }

    /** How many times the tokens/s of the model's first decode case. */
    public static double speedUp(ModelReport model, Decode decode) {
        return decode.tokensPerSecond() / model.decodes().getFirst().tokensPerSecond();
    }

    public void print(PrintWriter out) {
        machine.print(out, threads);
        printLimits(out);
        for (ModelReport model : models) {
            out.println();
            out.printf(
                    Locale.ROOT,
                    "%s: %.1f M parameters in %s, quantization %s%n",
                    model.name(),
                    model.parameters() / 1e6,
                    model.dtype().torchName(),
                    model.quantization().label());
            model.kernels().forEach(line -> out.println("  kernels: " + line));
            model.operators().stream()
                    .filter(OperatorRate::isSlow)
                    .forEach(rate -> out.println("  slow: " + rate.describe()));
            out.printf(
                    Locale.ROOT,
                    HEADING,
                    "",
                    "tokens/s",
                    "median",
                    "times",
                    "ms",
                    "TFLOP/s",
                    "of GEMM",
                    "of linear",
                    "beside");
            for (Prefill prefill : model.prefills()) {
                out.printf(
                        Locale.ROOT,
                        "  %-24s %10.0f %10.0f %8d %10.2f %10.3f %7.1f%% %9.1f%% %10s%n",
                        "prefill " + prefill.tokens(),
                        prefill.tokensPerSecond(),
                        prefill.tokens() / prefill.timing().median(),
                        prefill.timing().repetitions(),
                        prefill.timing().best() * 1e3,
                        prefill.flopsPerSecond() * 1e-12,
                        share(prefill) * 100,
                        shareOfLinear(prefill) * 100,
                        prefill.shareBeside().isPresent()
                                ? "%.1f%%".formatted(prefill.shareBeside().getAsDouble() * 100)
                                : "-");
            }
            out.printf(
                    Locale.ROOT,
                    HEADING,
                    "",
                    "tokens/s",
                    "median",
                    "times",
                    "ms/step",
                    "GB/s",
                    "of read",
                    "speed-up",
                    "");
            for (Decode decode : model.decodes()) {
                out.printf(
                        Locale.ROOT,
                        "  %-24s %10.1f %10.1f %8d %10.2f %10.2f %7.1f%% %9.2fx%n",
                        "decode batch %d at %d".formatted(decode.batch(), decode.context()),
                        decode.tokensPerSecond(),
                        decode.batch() / decode.timing().median(),
                        decode.timing().repetitions(),
                        decode.timing().best() * 1e3,
                        decode.bytesPerSecond() * 1e-9,
                        share(decode) * 100,
                        speedUp(model, decode));
            }
            model.serving().ifPresent(serving -> serving.print(out, model.decodes()));
        }
        out.println();
        out.println(Work.COUNTED);
        against.ifPresent(report -> report.print(out));
        leftOut.forEach(line -> out.println("left out: " + line));
        out.flush();
    }

    /** Prints the phases of steps in microseconds, by model. */
    public void printProfile(PrintWriter out) {
        for (ModelReport model : models) {
            out.println();
            out.println(model.name());
            model.serving().ifPresent(serving -> serving.printProfile(out));
        }
        out.flush();
    }

    /** The JSON form: rates per second in units of one, shares as fractions, times in seconds. */
    public ObjectNode toJson() {
        ObjectNode json = JsonMapper.builder().build().createObjectNode();
        json.put("threads", threads);
        machine.writeTo(json.putObject("machine"));
        json.putObject("limit_of_prefill").put("dtype", gemmDType().torchName()).put("flops_per_second", gemmFlops());
        json.putObject("limit_of_decode").put("bytes_per_second", readBytesPerSecond());
        ArrayNode rounds = json.putArray("limits");
        for (MachineLimits limit : limits) {
            ObjectNode round = rounds.addObject()
                    .put("gemm_flops_per_second", limit.gemmFlops())
                    .put("gemm_dtype", limit.gemmDType().torchName())
                    .put("read_bytes_per_second", limit.readBytesPerSecond());
            products(round.putObject(DType.BF16.torchName()), limit.bf16());
            products(round.putObject(DType.F32.torchName()), limit.fp32());
        }
        ArrayNode modelNodes = json.putArray("models");
        for (ModelReport model : models) {
            ObjectNode node = modelNodes
                    .addObject()
                    .put("name", model.name())
                    .put("parameters", model.parameters())
                    .put("dtype", model.dtype().torchName())
                    .put("quantization", model.quantization().label());
            ArrayNode kernels = node.putArray("kernels");
            model.kernels().forEach(kernels::add);
            ArrayNode operators = node.putArray("operators");
            model.operators()
                    .forEach(rate -> operators
                            .addObject()
                            .put("name", rate.operator())
                            .put("bound", rate.bound().name().toLowerCase(Locale.ROOT))
                            .put("per_thread", rate.perThread())
                            .put("slow", rate.isSlow()));
            ArrayNode prefills = node.putArray("prefill");
            for (Prefill prefill : model.prefills()) {
                ObjectNode prefillNode = timing(prefills.addObject().put("tokens", prefill.tokens()), prefill.timing())
                        .put("tokens_per_second", prefill.tokensPerSecond())
                        .put("flops_per_second", prefill.flopsPerSecond())
                        .put("share_of_gemm", share(prefill))
                        .put("share_of_linear", shareOfLinear(prefill));
                prefill.shareBeside().ifPresent(share -> prefillNode.put("share_of_gemm_beside", share));
            }
            ArrayNode decodes = node.putArray("decode");
            for (Decode decode : model.decodes()) {
                timing(
                                decodes.addObject().put("batch", decode.batch()).put("context", decode.context()),
                                decode.timing())
                        .put("tokens_per_second", decode.tokensPerSecond())
                        .put("bytes_per_second", decode.bytesPerSecond())
                        .put("share_of_read", share(decode))
                        .put("speed_up", speedUp(model, decode));
            }
            model.serving().ifPresent(serving -> serving.writeTo(node.putObject("engine"), model.decodes()));
        }
        against.ifPresent(report -> report.writeTo(json.putObject("against")));
        ArrayNode missing = json.putArray("left_out");
        leftOut.forEach(missing::add);
        return json;
    }

    private static void products(ObjectNode node, Products products) {
        node.put("gemm_flops_per_second", products.flops())
                .put("gemm_burst_flops_per_second", products.burstFlops())
                .put("linear_flops_per_second", products.linearFlops())
                .put("linear_bytes_per_second", products.bytesPerSecond());
    }

    static ObjectNode timing(ObjectNode node, Timing timing) {
        return node.put("median_seconds", timing.median())
                .put("best_seconds", timing.best())
                .put("repetitions", timing.repetitions());
    }

    private void printLimits(PrintWriter out) {
        String unit = "GFLOP/s";
        for (DType dtype : List.of(DType.BF16, DType.F32)) {
            String name = dtype == DType.BF16 ? "bf16" : "fp32";
            Function<MachineLimits, Products> products =
                    dtype == DType.BF16 ? MachineLimits::bf16 : MachineLimits::fp32;
            limit(
                    out,
                    name + " products [512, 2048] x [2048, 8192]",
                    unit,
                    of(products, Products::flops),
                    dtype == gemmDType() ? "the limit of prefill" : "");
            limit(out, "  the fastest single one", unit, of(products, Products::burstFlops), "");
            limit(out, "  by LibTorch's linear", unit, of(products, Products::linearFlops), "");
        }
        String reading = "the limit of decode";
        ToDoubleFunction<MachineLimits> bf16 = of(MachineLimits::bf16, Products::bytesPerSecond);
        ToDoubleFunction<MachineLimits> fp32 = of(MachineLimits::fp32, Products::bytesPerSecond);
        ToDoubleFunction<MachineLimits> sum = MachineLimits::readBytesPerSecond;
        limit(out, "read by bf16 linear of 1 row", "GB/s", bf16, isReadLimit(bf16) ? reading : "");
        limit(out, "read by fp32 linear of 1 row", "GB/s", fp32, isReadLimit(fp32) ? reading : "");
        limit(out, "read by summing it up", "GB/s", sum, isReadLimit(sum) ? reading : "");
    }

    private static ToDoubleFunction<MachineLimits> of(
            Function<MachineLimits, Products> products, ToDoubleFunction<Products> value) {
        return limits -> value.applyAsDouble(products.apply(limits));
    }

    private boolean isReadLimit(ToDoubleFunction<MachineLimits> way) {
        return best(way) == readBytesPerSecond();
    }

    private void limit(
            PrintWriter out, String what, String unit, ToDoubleFunction<MachineLimits> value, String remark) {
        out.printf(
                Locale.ROOT,
                "  %-38s %9.2f %-7s (median round %.2f) %s%n",
                what,
                best(value) * 1e-9,
                unit,
                Timing.median(limits.stream().map(value::applyAsDouble).toList()) * 1e-9,
                remark);
    }

    private double best(ToDoubleFunction<MachineLimits> value) {
        return limits.stream().mapToDouble(value).max().orElseThrow();
    }
}
