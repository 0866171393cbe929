package baton.cli;

import baton.cli.ApiClient.Answer;
import java.io.PrintWriter;
import java.util.Locale;
import java.util.Map;

/** A hand-over as the instances' own metrics tell it. */
record HandoverPicture(
        int promptTokens,
        int prefillComputed,
        int handedOver,
        int decodeComputed,
        double savedBytes,
        double saveMillis,
        double loadedBytes,
        double loadMillis,
        double prefillMillis,
        Answer answer) {

    /** What happened between two looks at both metrics pages. */
    static HandoverPicture between(
            Map<String, Double> prefillBefore,
            Map<String, Double> prefillAfter,
            Map<String, Double> decodeBefore,
            Map<String, Double> decodeAfter,
            Answer answer) {
        return new HandoverPicture(
                answer.promptTokens(),
                (int) growth(prefillBefore, prefillAfter, "vllm:prompt_tokens_by_source_total", "local_compute"),
                (int) growth(decodeBefore, decodeAfter, "vllm:prompt_tokens_by_source_total", "external_kv_transfer"),
                (int) growth(decodeBefore, decodeAfter, "vllm:prompt_tokens_by_source_total", "local_compute"),
                growth(prefillBefore, prefillAfter, "baton:kv_save_bytes_total", ""),
                growth(prefillBefore, prefillAfter, "baton:kv_save_seconds_sum", "") * 1e3,
                growth(decodeBefore, decodeAfter, "baton:kv_load_bytes_total", ""),
                growth(decodeBefore, decodeAfter, "baton:kv_load_seconds_sum", "") * 1e3,
                growth(prefillBefore, prefillAfter, "vllm:request_prefill_time_seconds_sum", "") * 1e3,
                answer);
    }

    /** Growth of the samples of that name whose labels contain {@code label}. */
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
                    │          │ KV       %s saved, %.1f ms after the last layer
                    │          ▼
                    │        shared storage
                    │          │
                    │          │ KV       %s loaded in %.1f ms
                    │          ▼
                    └──────▶ decode       took over %d tokens, computed %d

                """,
                answer.ttftMillis(),
                answer.meanItlMillis(),
                promptTokens,
                prefillComputed,
                prefillMillis,
                mebibytes(savedBytes),
                saveMillis,
                mebibytes(loadedBytes),
                loadMillis,
                handedOver,
                decodeComputed);
    }

    private static String mebibytes(double bytes) {
        return String.format(Locale.ROOT, "%.2f MiB", bytes / (1 << 20));
    }
}
