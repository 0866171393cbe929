package baton.cli;

import baton.cli.ApiClient.Answer;
import java.io.PrintWriter;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.ToDoubleFunction;

/**
 * A hand-over according to the instances' metrics.
 *
 * @param way of the KV between the instances, line by line
 */
record HandoverPicture(
        int promptTokens,
        int prefillComputed,
        int handedOver,
        int decodeComputed,
        List<String> way,
        double prefillMillis,
        Answer answer) {
    /** Beginnings of the metrics of connectors that move from memory to memory. */
    private static final List<String> ONE_SIDED = List.of("vllm:nixl_", "vllm:mooncake_", "baton:sglang_");

    /** The hand-over between two readings of both metrics pages. */
    static HandoverPicture between(
            Map<String, Double> prefillBefore,
            Map<String, Double> prefillAfter,
            Map<String, Double> decodeBefore,
            Map<String, Double> decodeAfter,
            Answer answer) {
        List<String> way = way(
                name -> growth(prefillBefore, prefillAfter, name, ""),
                name -> growth(decodeBefore, decodeAfter, name, ""));
        return new HandoverPicture(
                answer.promptTokens(),
                (int) growth(prefillBefore, prefillAfter, "vllm:prompt_tokens_by_source_total", "local_compute"),
                (int) growth(decodeBefore, decodeAfter, "vllm:prompt_tokens_by_source_total", "external_kv_transfer"),
                (int) growth(decodeBefore, decodeAfter, "vllm:prompt_tokens_by_source_total", "local_compute"),
                way,
                growth(prefillBefore, prefillAfter, "vllm:request_prefill_time_seconds_sum", "") * 1e3,
                answer);
    }

    /** @param prefill growth of a metric of the prefill instance, {@code decode} likewise */
    private static List<String> way(ToDoubleFunction<String> prefill, ToDoubleFunction<String> decode) {
        double lookedUp = decode.applyAsDouble("baton:kv_lookup_bytes_total");
        double sent = decode.applyAsDouble("baton:p2p_received_bytes_total");
        double stored = decode.applyAsDouble("vllm:kv_offload_tiering_read_bytes_total");
        for (String transfers : ONE_SIDED) {
            double read = decode.applyAsDouble(transfers + "bytes_transferred_sum");
            double written = prefill.applyAsDouble(transfers + "bytes_transferred_sum");
            String time = transfers + "xfer_time_seconds_sum";
            if (read > 0) {
                return List.of("KV       %s read from prefill's memory in %s"
                        .formatted(mebibytes(read), millis(decode.applyAsDouble(time))));
            }
            if (written > 0) {
                return List.of("KV       %s written into decode's memory in %s"
                        .formatted(mebibytes(written), millis(prefill.applyAsDouble(time))));
            }
        }
        if (lookedUp > 0) {
            return List.of("KV       %s and the last hidden state, asked for and had after %s"
                    .formatted(mebibytes(lookedUp), millis(decode.applyAsDouble("baton:kv_lookup_seconds_sum"))));
        }
        if (sent > 0) {
            return List.of("KV       %s sent, a tensor for each layer; in its blocks after %s"
                    .formatted(mebibytes(sent), millis(decode.applyAsDouble("baton:kv_load_seconds_sum"))));
        }
        if (stored > 0) {
            return List.of(
                    "KV       %s written in %s"
                            .formatted(
                                    mebibytes(prefill.applyAsDouble("vllm:kv_offload_tiering_write_bytes_total")),
                                    millis(prefill.applyAsDouble("vllm:kv_offload_tiering_write_time_total"))),
                    "store",
                    "KV       %s read in %s, in its blocks after %s more"
                            .formatted(
                                    mebibytes(stored),
                                    millis(decode.applyAsDouble("vllm:kv_offload_tiering_read_time_total")),
                                    millis(decode.applyAsDouble("vllm:kv_offload_load_time_total"))));
        }
        return List.of(
                "KV       %s saved, %s after the last layer"
                        .formatted(
                                mebibytes(prefill.applyAsDouble("baton:kv_save_bytes_total")),
                                millis(prefill.applyAsDouble("baton:kv_save_seconds_sum"))),
                "shared storage",
                "KV       %s loaded in %s"
                        .formatted(
                                mebibytes(decode.applyAsDouble("baton:kv_load_bytes_total")),
                                millis(decode.applyAsDouble("baton:kv_load_seconds_sum"))));
    }

    /** Growth of the samples of that name with labels that contain {@code label}. */
    private static double growth(Map<String, Double> before, Map<String, Double> after, String name, String label) {
        return sum(after, name, label) - sum(before, name, label);
    }

    private static double sum(Map<String, Double> samples, String name, String label) {
        return samples.entrySet().stream()
                .filter(sample ->
                        sample.getKey().equals(name) || sample.getKey().startsWith(name + "{"))
                .filter(sample -> sample.getKey().contains(label))
                .mapToDouble(Map.Entry::getValue)
                .sum();
    }

    void print(PrintWriter out) {
        out.printf(
                Locale.ROOT,
                """
                  client                  TTFT %.0f ms, ITL %.1f ms
                    │ prompt, %d tokens
                    ▼
                  router ──▶ prefill      computed %d tokens in %.0f ms
                    │          │
                """,
                answer.ttftMillis(),
                answer.meanItlMillis(),
                promptTokens,
                prefillComputed,
                prefillMillis);
        for (String line : way) {
            if (line.startsWith("KV")) {
                out.println("    │          │ " + line);
                out.println("    │          ▼");
            } else {
                out.println("    │        " + line);
                out.println("    │          │");
            }
        }
        out.printf(Locale.ROOT, """
                    └──────▶ decode       took over %d tokens, computed %d

                """, handedOver, decodeComputed);
    }

    private static String mebibytes(double bytes) {
        return String.format(Locale.ROOT, "%.2f MiB", bytes / (1 << 20));
    }

    private static String millis(double seconds) {
        return String.format(Locale.ROOT, "%.1f ms", seconds * 1e3);
    }
}
