package baton.bench.serve;

import baton.bench.serve.Statistics.Percentile;
import java.io.PrintWriter;
import java.time.LocalDateTime;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.function.ToDoubleFunction;
import org.HdrHistogram.Histogram;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/** The report of one load, in the lines and the JSON of vLLM 0.32's {@code bench serve}, followed by figures that vLLM does not measure. */
public record ServeReport(About about, Traffic traffic, Selection selection, Metrics metrics) {
    private static final int WIDTH = 50;
    private static final List<Double> RANKS_FROM_DUE = List.of(50.0, 90.0, 99.0, 99.9);

    /**
     * The measured server and load.
     *
     * @param label of this run, if it has one
     * @param model the checkpoint, as far as it is known
     * @param tokenizer that prompts were made with
     * @param metadata to be kept with the figures
     */
    public record About(
            LocalDateTime date,
            Backend backend,
            Optional<String> label,
            String model,
            String tokenizer,
            Map<String, String> metadata) {}

    /** @param most requests at once */
    public record Traffic(Arrivals arrivals, OptionalInt most) {}

    /**
     * The figures to report.
     *
     * @param metrics names of those with percentiles
     * @param ranks of the percentiles
     */
    public record Selection(List<String> metrics, List<Double> ranks, Objectives objectives) {}

    /** A metric with percentiles. */
    private record Metric(String name, String shown, String header, double[] seconds) {}

    private List<Metric> selected() {
        List<Metric> all = new ArrayList<>(List.of(
                new Metric("ttft", "TTFT", "Time to First Token", metrics.ttft()),
                new Metric("tpot", "TPOT", "Time per Output Token (excl. 1st token)", metrics.tpot()),
                new Metric("itl", "ITL", "Inter-token Latency", metrics.itl()),
                new Metric("e2el", "E2EL", "End-to-end Latency", metrics.e2el())));
        if (traffic.most.isPresent()) {
            all.add(new Metric(
                    "client_queue_time",
                    "Client Queue Time",
                    "Client-side Queueing",
                    metrics.each(Exchange::queuedSeconds)));
            if (Double.isFinite(traffic.arrivals.rate())) {
                all.add(new Metric(
                        "e2el_including_client_queue",
                        "E2EL incl. Client Queue",
                        "Queue-inclusive End-to-end Latency",
                        metrics.each(each -> each.latencySeconds() + each.queuedSeconds())));
            }
        }
        return all.stream()
                .filter(each -> selection.metrics.contains(each.name))
                .toList();
    }

    /** Prints the report. */
    public void print(PrintWriter out) {
        List<Exchange> failed =
                metrics.exchanges().stream().filter(each -> !each.succeeded()).toList();
        if (!failed.isEmpty()) {
            out.println("Failed requests during benchmark run detected (capping to 10):");
            for (int i = 0; i < Math.min(10, failed.size()); i++) {
                out.println("Error " + i + ": " + failed.get(i).error().orElse(""));
            }
        }
        Metrics.Seconds bySecond = metrics.bySecond();
        out.println(centred(" Serving Benchmark Result ", '='));
        count(out, "Successful requests:", metrics.completed());
        count(out, "Failed requests:", metrics.failed());
        traffic.most.ifPresent(most -> count(out, "Maximum request concurrency:", most));
        if (Double.isFinite(traffic.arrivals.rate())) {
            number(out, "Request rate configured (RPS):", traffic.arrivals.rate());
        }
        number(out, "Benchmark duration (s):", metrics.seconds());
        count(out, "Total input tokens:", metrics.inputTokens());
        count(out, "Total generated tokens:", metrics.outputTokens());
        number(out, "Request throughput (req/s):", metrics.requestsPerSecond());
        if (!selection.objectives.isNone()) {
            number(out, "Request goodput (req/s):", metrics.goodput(selection.objectives));
        }
        number(out, "Output token throughput (tok/s):", metrics.outputPerSecond());
        number(out, "Peak output token throughput (tok/s):", bySecond.mostTokens());
        number(out, "Peak concurrent requests:", bySecond.mostRequests());
        number(out, "Total token throughput (tok/s):", metrics.tokensPerSecond());
        for (Metric metric : selected()) {
            Statistics figures = Statistics.of(metric.seconds, selection.ranks);
            out.println(centred(metric.header, '-'));
            number(out, "Mean " + metric.shown + " (ms):", figures.mean() * 1e3);
            number(out, "Median " + metric.shown + " (ms):", figures.median() * 1e3);
            for (Percentile each : figures.percentiles()) {
                number(out, each.label().toUpperCase(Locale.ROOT) + " " + metric.shown + " (ms):", each.value() * 1e3);
            }
        }
        out.println("=".repeat(WIDTH));
        if (traffic.arrivals.isScheduled()) {
            out.println("From when each request was due (above: from when it was sent, as vLLM measures)");
            fromDue(out, "Sent late", metrics.late());
            fromDue(out, "TTFT from due", metrics.ttftFromDue());
            fromDue(out, "E2EL from due", metrics.e2elFromDue());
        }
        out.flush();
    }

    private static void fromDue(PrintWriter out, String name, Histogram micros) {
        out.printf(
                Locale.ROOT,
                "%-16s mean %.2f, median %.2f, P90 %.2f, P99 %.2f, P99.9 %.2f, max %.2f ms%n",
                name + ":",
                micros.getMean() / 1e3,
                micros.getValueAtPercentile(50) / 1e3,
                micros.getValueAtPercentile(90) / 1e3,
                micros.getValueAtPercentile(99) / 1e3,
                micros.getValueAtPercentile(99.9) / 1e3,
                micros.getMaxValue() / 1e3);
    }

    private static void count(PrintWriter out, String name, long value) {
        out.printf(Locale.ROOT, "%-40s %-10d%n", name, value);
    }

    private static void number(PrintWriter out, String name, double value) {
        out.printf(Locale.ROOT, "%-40s %-10.2f%n", name, value);
    }

    private static String centred(String text, char fill) {
        int left = Math.max(0, (WIDTH - text.length()) / 2);
        int right = Math.max(0, WIDTH - text.length() - left);
        return String.valueOf(fill).repeat(left) + text + String.valueOf(fill).repeat(right);
    }

    /** @param detailed whether the figures of each request are in it too */
    public ObjectNode toJson(boolean detailed) {
        ObjectNode json = JsonNodeFactory.instance.objectNode();
        json.put("date", about.date.format(DateTimeFormatter.ofPattern("yyyyMMdd-HHmmss", Locale.ROOT)));
        json.put("endpoint_type", about.backend.label());
        json.put("backend", about.backend.label());
        about.label.ifPresentOrElse(label -> json.put("label", label), () -> json.putNull("label"));
        json.put("model_id", about.model);
        json.put("tokenizer_id", about.tokenizer);
        json.put("num_prompts", metrics.exchanges().size());
        about.metadata.forEach(json::put);
        Arrivals arrivals = traffic.arrivals;
        infinite(json, "request_rate", arrivals.rate());
        infinite(json, "burstiness", arrivals.burstiness());
        traffic.most.ifPresentOrElse(most -> json.put("max_concurrency", most), () -> json.putNull("max_concurrency"));
        arrivals.ramp()
                .ifPresent(ramp -> json.put(
                                "ramp_up_strategy", ramp.strategy().name().toLowerCase(Locale.ROOT))
                        .put("ramp_up_start_rps", ramp.from())
                        .put("ramp_up_end_rps", ramp.to()));
        json.put("duration", metrics.seconds());
        json.put("completed", metrics.completed());
        json.put("failed", metrics.failed());
        json.put("total_input_tokens", metrics.inputTokens());
        json.put("total_output_tokens", metrics.outputTokens());
        json.put("request_throughput", metrics.requestsPerSecond());
        if (selection.objectives.isNone()) {
            json.putNull("request_goodput");
        } else {
            json.put("request_goodput", metrics.goodput(selection.objectives));
        }
        json.put("output_throughput", metrics.outputPerSecond());
        json.put("total_token_throughput", metrics.tokensPerSecond());
        if (detailed) {
            detail(json);
        }
        numbers(json, "latencies", Exchange::latencySeconds);
        numbers(json, "queue_times", Exchange::queuedSeconds);
        Metrics.Seconds bySecond = metrics.bySecond();
        json.put("max_output_tokens_per_s", (double) bySecond.mostTokens());
        json.put("max_concurrent_requests", bySecond.mostRequests());
        json.put("rtfx", 0.0);
        for (Metric metric : selected()) {
            Statistics figures = Statistics.of(metric.seconds, selection.ranks);
            json.put("mean_" + metric.name + "_ms", figures.mean() * 1e3);
            json.put("median_" + metric.name + "_ms", figures.median() * 1e3);
            json.put("std_" + metric.name + "_ms", figures.std() * 1e3);
            figures.percentiles()
                    .forEach(each -> json.put(each.label() + "_" + metric.name + "_ms", each.value() * 1e3));
        }
        if (arrivals.isScheduled()) {
            ObjectNode fromDue = json.putObject("from_due");
            histogram(fromDue.putObject("sent_late_ms"), metrics.late());
            histogram(fromDue.putObject("ttft_ms"), metrics.ttftFromDue());
            histogram(fromDue.putObject("e2el_ms"), metrics.e2elFromDue());
        }
        return json;
    }

    private void detail(ObjectNode json) {
        ArrayNode input = json.putArray("input_lens");
        ArrayNode output = json.putArray("output_lens");
        numbers(json, "ttfts", Exchange::ttftSeconds);
        ArrayNode itls = json.putArray("itls");
        numbers(json, "start_times", each -> each.sent() * 1e-9);
        ArrayNode texts = json.putArray("generated_texts");
        ArrayNode errors = json.putArray("errors");
        for (Exchange each : metrics.exchanges()) {
            input.add(each.promptTokens());
            output.add(each.tokens());
            ArrayNode own = itls.addArray();
            for (long nanos : each.between()) {
                own.add(nanos * 1e-9);
            }
            texts.add(each.text());
            errors.add(each.error().orElse(""));
        }
    }

    private void numbers(ObjectNode json, String name, ToDoubleFunction<Exchange> value) {
        ArrayNode array = json.putArray(name);
        metrics.exchanges().forEach(each -> array.add(value.applyAsDouble(each)));
    }

    private static void infinite(ObjectNode json, String name, double value) {
        if (Double.isFinite(value)) {
            json.put(name, value);
        } else {
            json.put(name, "inf");
        }
    }

    private static void histogram(ObjectNode json, Histogram micros) {
        json.put("mean", micros.getMean() / 1e3);
        for (double rank : RANKS_FROM_DUE) {
            json.put(new Percentile(rank, 0).label(), micros.getValueAtPercentile(rank) / 1e3);
        }
        json.put("max", micros.getMaxValue() / 1e3);
    }

    /** The name that vLLM gives to such a report's file. */
    public String fileName() {
        Arrivals arrivals = traffic.arrivals;
        String what = arrivals.ramp()
                .map(ramp -> "ramp-up-%s-%sqps-%sqps"
                        .formatted(
                                ramp.strategy().name().toLowerCase(Locale.ROOT), plain(ramp.from()), plain(ramp.to())))
                .orElseGet(() -> (Double.isFinite(arrivals.rate()) ? Double.toString(arrivals.rate()) : "inf") + "qps");
        String most = traffic.most.isPresent() ? "-concurrency" + traffic.most.getAsInt() : "";
        return "%s-%s%s-%s-%s.json"
                .formatted(
                        about.label.orElse(about.backend.label()),
                        what,
                        most,
                        about.model.substring(about.model.lastIndexOf('/') + 1),
                        about.date.format(DateTimeFormatter.ofPattern("yyyyMMdd-HHmmss", Locale.ROOT)));
    }

    private static String plain(double value) {
        return value == Math.rint(value) ? Long.toString((long) value) : Double.toString(value);
    }
}
