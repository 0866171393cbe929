package baton.bench;

import baton.bench.frame.Column;
import baton.bench.frame.Layout;
import baton.bench.frame.Timing;
import baton.engine.model.MachineLimits;
import baton.engine.model.MachineLimits.Products;
import baton.engine.model.ModelConfig;
import baton.engine.model.OperatorRate;
import baton.engine.model.Quantization;
import baton.kv.DType;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.function.ToDoubleFunction;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** The figures of {@link EngineBench} as JSON: rates a second in units of one, shares as fractions, times in seconds; and their layout. */
final class EngineFigures {
    private EngineFigures() {}

    static final Layout FIGURES = new Layout()
            .machine()
            .each(
                    "limits_by_way",
                    new Layout()
                            .line(
                                    "  {way|%-38s} {best|%9.2f|1e-9} {unit|%-7s} (median round {median|%.2f|1e-9}) {remark}"))
            .each("models", ofModel())
            .note("models", "\n" + LeastWork.COUNTED)
            .table(
                    "Against {against/url} ({against/model}), requests to Baton's server and to that one in turns, prompts as {against/prompts}; medians",
                    "against/cases",
                    Column.of("", "{label}"),
                    Column.of("Baton, tokens/s", "{baton/tokens_per_second|%.1f}"),
                    Column.of("ms", "{baton/median_seconds|%.2f|1e3}"),
                    Column.of("other, tokens/s", "{other/tokens_per_second|%.1f}"),
                    Column.of("ms", "{other/median_seconds|%.2f|1e3}"),
                    Column.of("ratio", "{ratio|%.2f}x"),
                    Column.of("times", "{baton/repetitions}"))
            .note("against/cases", """
                    Prefill: from the request to the first token, of prompts that are new. Decode: from the last request's first
                    token to the first request's last, while all of them decode; ms is the time of a step.""")
            .leftOut();

    private static Layout ofModel() {
        return new Layout()
                .line("\n{name}: {parameters|%.1f|1e-6} M parameters in {dtype}, quantization {quantization}")
                .each("kernels", new Layout().line("  kernels: {.}"))
                .each("slow", new Layout().line("  slow: {.}"))
                .table(
                        "",
                        "prefill",
                        Column.of("forward passes", "prefill {tokens}"),
                        Column.of("tokens/s", "{tokens_per_second|%.0f}"),
                        Column.of("median", "{median_tokens_per_second|%.0f}"),
                        Column.of("times", "{repetitions}"),
                        Column.of("ms", "{best_seconds|%.2f|1e3}"),
                        Column.of("TFLOP/s", "{flops_per_second|%.3f|1e-12}"),
                        Column.of("of GEMM", "{share_of_gemm|%.1f|100}%"),
                        Column.of("of linear", "{share_of_linear|%.1f|100}%"),
                        Column.of("beside", "{share_of_gemm_beside|%.1f|100}%"))
                .table(
                        "",
                        "decode",
                        Column.of("forward passes", "decode batch {batch} at {context}"),
                        Column.of("tokens/s", "{tokens_per_second|%.1f}"),
                        Column.of("median", "{median_tokens_per_second|%.1f}"),
                        Column.of("times", "{repetitions}"),
                        Column.of("ms/step", "{best_seconds|%.2f|1e3}"),
                        Column.of("GB/s", "{bytes_per_second|%.2f|1e-9}"),
                        Column.of("of read", "{share_of_read|%.1f|100}%"),
                        Column.of("speed-up", "{speed_up|%.2f}x"))
                .table(
                        "",
                        "engine/decode",
                        Column.of("through the engine", "{label}"),
                        Column.of("tokens/s", "{tokens_per_second|%.1f}"),
                        Column.of("median", "{median_tokens_per_second|%.1f}"),
                        Column.of("steps", "{repetitions}"),
                        Column.of("ms/step", "{best_seconds|%.2f|1e3}"),
                        Column.of("of forward", "{share_of_forward|%.1f|100}%"),
                        Column.of("overhead", "{overhead_microseconds|%.0f} us"),
                        Column.of("p99 us", "{p99_overhead_microseconds|%.0f}"))
                .line(
                        "  decode {engine/format/sequences} of a JSON schema: {engine/format/formatted/median_tokens_per_second|%.1f} tokens/s,"
                                + " {engine/format/share_of_free|%.1f|100}% of the {engine/format/free/median_tokens_per_second|%.1f} without"
                                + " (medians of {engine/format/formatted/repetitions} steps)")
                .line(
                        "  first token of {engine/first_token/prompt_tokens} tokens: {engine/first_token/cold/median_seconds|%.2f|1e3} ms;"
                                + " {engine/first_token/hit/median_seconds|%.2f|1e3} ms with {engine/first_token/cached_tokens} of them cached,"
                                + " {engine/first_token/share_of_cold|%.1f|100}% of it (medians of {engine/first_token/cold/repetitions})");
    }

    /** A rate of so many tokens each time: the best, and the median. */
    static ObjectNode rate(ObjectNode node, Timing timing, double tokens) {
        return timing.writeTo(node)
                .put("tokens_per_second", tokens / timing.best())
                .put("median_tokens_per_second", tokens / timing.median());
    }

    /** Writes the machine's limits, in the best of these rounds, and the shares of them that all models reach which it computes. */
    static void limits(ObjectNode json, List<MachineLimits> limits) {
        DType dtype = limits.stream()
                .max(Comparator.comparingDouble(MachineLimits::gemmFlops))
                .orElseThrow()
                .gemmDType();
        double gemm = best(limits, MachineLimits::gemmFlops);
        double linear = best(limits, MachineLimits::linearFlops);
        double read = best(limits, MachineLimits::bytesPerSecond);
        json.putObject("limit_of_prefill").put("dtype", dtype.torchName()).put("flops_per_second", gemm);
        json.putObject("limit_of_decode").put("bytes_per_second", read);
        ArrayNode rounds = json.putArray("limits");
        for (MachineLimits limit : limits) {
            ObjectNode round = rounds.addObject()
                    .put("gemm_flops_per_second", limit.gemmFlops())
                    .put("gemm_dtype", limit.gemmDType().torchName())
                    .put("read_bytes_per_second", limit.readBytesPerSecond());
            products(round.putObject(DType.BF16.torchName()), limit.bf16());
            products(round.putObject(DType.F32.torchName()), limit.fp32());
        }
        Ways ways = new Ways(json.putArray("limits_by_way"), limits);
        for (DType each : List.of(DType.BF16, DType.F32)) {
            String name = each == DType.BF16 ? "bf16" : "fp32";
            ways.products(name + " products [512, 2048] x [2048, 8192]", each, Products::flops)
                    .put("remark", each == dtype ? "the limit of prefill" : "");
            ways.products("  the fastest single one", each, Products::burstFlops);
            ways.products("  by LibTorch's linear", each, Products::linearFlops);
        }
        ways.reading("read by bf16 linear of 1 row", read, limit -> limit.bf16().bytesPerSecond());
        ways.reading("read by fp32 linear of 1 row", read, limit -> limit.fp32().bytesPerSecond());
        ways.reading("read by summing it up", read, MachineLimits::readBytesPerSecond);
        for (JsonNode model : json.path("models")) {
            if (!model.path("on_processor").asBoolean(true)) {
                continue;
            }
            for (JsonNode prefill : model.path("prefill")) {
                double flops = prefill.path("flops_per_second").asDouble();
                ((ObjectNode) prefill).put("share_of_gemm", flops / gemm).put("share_of_linear", flops / linear);
            }
            for (JsonNode decode : model.path("decode")) {
                ((ObjectNode) decode)
                        .put("share_of_read", decode.path("bytes_per_second").asDouble() / read);
            }
        }
    }

    /** The limits by the ways in which they were measured. */
    private record Ways(ArrayNode array, List<MachineLimits> limits) {
        ObjectNode products(String way, DType dtype, ToDoubleFunction<Products> value) {
            return add(way, "GFLOP/s", limit -> value.applyAsDouble(dtype == DType.BF16 ? limit.bf16() : limit.fp32()));
        }

        void reading(String way, double limit, ToDoubleFunction<MachineLimits> value) {
            add(way, "GB/s", value).put("remark", best(limits, value) == limit ? "the limit of decode" : "");
        }

        private ObjectNode add(String way, String unit, ToDoubleFunction<MachineLimits> value) {
            return array.addObject()
                    .put("way", way)
                    .put("unit", unit)
                    .put("best", best(limits, value))
                    .put(
                            "median",
                            Timing.median(
                                    limits.stream().map(value::applyAsDouble).toList()))
                    .put("remark", "");
        }
    }

    private static double best(List<MachineLimits> limits, ToDoubleFunction<MachineLimits> value) {
        return limits.stream().mapToDouble(value).max().orElseThrow();
    }

    private static void products(ObjectNode node, Products products) {
        node.put("gemm_flops_per_second", products.flops())
                .put("gemm_burst_flops_per_second", products.burstFlops())
                .put("linear_flops_per_second", products.linearFlops())
                .put("linear_bytes_per_second", products.bytesPerSecond());
    }

    /**
     * Writes a model.
     *
     * @param kernels that its runner uses, one line each
     * @param operators the best rates of its operators
     */
    static void model(
            ObjectNode node,
            ModelConfig config,
            DType dtype,
            Quantization quantization,
            List<String> kernels,
            List<OperatorRate> operators) {
        node.put("name", config.name())
                .put("parameters", config.parameters())
                .put("dtype", dtype.torchName())
                .put("quantization", quantization.label());
        kernels.forEach(node.putArray("kernels")::add);
        ArrayNode rates = node.putArray("operators");
        ArrayNode slow = node.putArray("slow");
        for (OperatorRate rate : operators) {
            rates.addObject()
                    .put("name", rate.operator())
                    .put("bound", rate.bound().name().toLowerCase(Locale.ROOT))
                    .put("per_thread", rate.perThread())
                    .put("slow", rate.isSlow());
            if (rate.isSlow()) {
                slow.add(rate.describe());
            }
        }
    }
}
