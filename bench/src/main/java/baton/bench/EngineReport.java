package baton.bench;

import baton.engine.model.MachineLimits;
import baton.engine.model.Quantization;
import baton.kv.DType;
import java.io.PrintWriter;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.function.ToDoubleFunction;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * What {@link EngineBench} measured.
 *
 * @param threads threads it computed with
 * @param limits of each round
 */
public record EngineReport(int threads, List<MachineLimits> limits, List<ModelReport> models) {
    private static final String HEADING = "  %-24s %10s %10s %8s %10s %10s %8s %10s %10s%n";

    /**
     * @param parameters weights of the model, a shared embedding counted once
     * @param serving requests through the whole engine, if they were measured
     */
    public record ModelReport(
            String name,
            long parameters,
            DType dtype,
            Quantization quantization,
            List<Prefill> prefills,
            List<Decode> decodes,
            Optional<ServingReport> serving) {
        ModelReport with(ServingReport measured) {
            return new ModelReport(name, parameters, dtype, quantization, prefills, decodes, Optional.of(measured));
        }
    }

    /**
     * A first chunk of one sequence.
     *
     * @param flops operations that it takes
     * @param shareBeside of the rate of matrix products that were done for as long right before and after it, at the median
     */
    public record Prefill(int tokens, Timing timing, double flops, double shareBeside) {
        static Prefill of(int tokens, double flops, List<Double> seconds, List<Beside> beside) {
            List<Double> shares = beside.stream()
                    .map(pass -> flops / pass.seconds() / pass.gemmFlops())
                    .toList();
            return new Prefill(tokens, Timing.of(seconds), flops, Timing.median(shares));
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

    /** bf16 operations a second in the best round. */
    public double gemmFlops() {
        return best(MachineLimits::gemmFlops);
    }

    /** Bytes a second of the faster of both ways to read, in its best round. */
    public double readBytesPerSecond() {
        return Math.max(best(MachineLimits::linearBytesPerSecond), best(MachineLimits::readBytesPerSecond));
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
        out.printf(Locale.ROOT, "This machine with %d threads, %d rounds%n", threads, limits.size());
        limit(out, "bf16 GEMM [512, 2048] x [2048, 8192]", "TFLOP/s", 1e-12, MachineLimits::gemmFlops);
        limit(out, "  the fastest single product", "TFLOP/s", 1e-12, MachineLimits::gemmBurstFlops);
        limit(out, "  eight in a row by LibTorch's linear", "TFLOP/s", 1e-12, MachineLimits::linearFlops);
        limit(out, "weights read by linear layers, 1 row", "GB/s", 1e-9, MachineLimits::linearBytesPerSecond);
        limit(out, "memory read by summing it up", "GB/s", 1e-9, MachineLimits::readBytesPerSecond);
        for (ModelReport model : models) {
            out.println();
            out.printf(
                    Locale.ROOT,
                    "%s: %.1f M parameters in %s, quantization %s%n",
                    model.name(),
                    model.parameters() / 1e6,
                    model.dtype().torchName(),
                    model.quantization().label());
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
                        "  %-24s %10.0f %10.0f %8d %10.2f %10.3f %7.1f%% %9.1f%% %9.1f%%%n",
                        "prefill " + prefill.tokens(),
                        prefill.tokensPerSecond(),
                        prefill.tokens() / prefill.timing().median(),
                        prefill.timing().repetitions(),
                        prefill.timing().best() * 1e3,
                        prefill.flopsPerSecond() * 1e-12,
                        share(prefill) * 100,
                        shareOfLinear(prefill) * 100,
                        prefill.shareBeside() * 100);
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
        out.flush();
    }

    /** Where the time of steps went, in microseconds, by model. */
    public void printProfile(PrintWriter out) {
        for (ModelReport model : models) {
            out.println();
            out.println(model.name());
            model.serving().ifPresent(serving -> serving.printProfile(out));
        }
        out.flush();
    }

    /** For machines: rates per second in units of one, shares as fractions, times in seconds. */
    public ObjectNode toJson() {
        ObjectNode json = JsonMapper.builder().build().createObjectNode();
        json.put("threads", threads);
        ArrayNode rounds = json.putArray("limits");
        for (MachineLimits limit : limits) {
            rounds.addObject()
                    .put("gemm_flops_per_second", limit.gemmFlops())
                    .put("gemm_burst_flops_per_second", limit.gemmBurstFlops())
                    .put("linear_flops_per_second", limit.linearFlops())
                    .put("linear_bytes_per_second", limit.linearBytesPerSecond())
                    .put("read_bytes_per_second", limit.readBytesPerSecond());
        }
        ArrayNode modelNodes = json.putArray("models");
        for (ModelReport model : models) {
            ObjectNode node = modelNodes
                    .addObject()
                    .put("name", model.name())
                    .put("parameters", model.parameters())
                    .put("dtype", model.dtype().torchName())
                    .put("quantization", model.quantization().label());
            ArrayNode prefills = node.putArray("prefill");
            for (Prefill prefill : model.prefills()) {
                timing(prefills.addObject().put("tokens", prefill.tokens()), prefill.timing())
                        .put("tokens_per_second", prefill.tokensPerSecond())
                        .put("flops_per_second", prefill.flopsPerSecond())
                        .put("share_of_gemm", share(prefill))
                        .put("share_of_linear", shareOfLinear(prefill))
                        .put("share_of_gemm_beside", prefill.shareBeside());
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
        return json;
    }

    static ObjectNode timing(ObjectNode node, Timing timing) {
        return node.put("median_seconds", timing.median())
                .put("best_seconds", timing.best())
                .put("repetitions", timing.repetitions());
    }

    private void limit(PrintWriter out, String what, String unit, double scale, ToDoubleFunction<MachineLimits> value) {
        out.printf(
                Locale.ROOT,
                "  %-38s %8.3f %-7s (median round %.3f)%n",
                what,
                best(value) * scale,
                unit,
                Timing.median(limits.stream().map(value::applyAsDouble).toList()) * scale);
    }

    private double best(ToDoubleFunction<MachineLimits> value) {
        return limits.stream().mapToDouble(value).max().orElseThrow();
    }
}
