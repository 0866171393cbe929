package baton.bench;

import java.io.PrintWriter;
import java.util.Locale;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * What {@link OffloadingBench} measured.
 *
 * @param bytes of a prompt's KV cache
 * @param computed without the connector
 * @param missed with it, and with nothing to load
 */
public record OffloadingReport(
        String model, int tokens, long bytes, Timing computed, Timing missed, Timing fromMemory, Timing fromFiles) {
    /** How much longer a miss takes with the connector, median to median; 0.01 is one per cent. */
    public double missOverhead() {
        return missed.median() / computed.median() - 1;
    }

    public void print(PrintWriter out) {
        out.printf(
                Locale.ROOT,
                "%s, prompts of %,d tokens (%.1f MiB of KV cache), %d each: time to the first token, milliseconds%n%n",
                model,
                tokens,
                bytes / 1048576.0,
                computed.repetitions());
        line(out, "computed", computed);
        line(out, "computed, with the connector", missed);
        line(out, "loaded from memory", fromMemory);
        line(out, "loaded from files", fromFiles);
        out.printf(
                Locale.ROOT,
                "%nA miss costs %+.1f %% (best to best %+.1f %%); a hit in memory takes 1/%.0f, one in files 1/%.0f of computing.%n",
                missOverhead() * 100,
                (missed.best() / computed.best() - 1) * 100,
                computed.median() / fromMemory.median(),
                computed.median() / fromFiles.median());
        out.flush();
    }

    private static void line(PrintWriter out, String name, Timing timing) {
        out.printf(Locale.ROOT, "  %-30s %10.1f (%.1f)%n", name, timing.median() * 1e3, timing.best() * 1e3);
    }

    public ObjectNode toJson() {
        ObjectNode root = JsonMapper.builder().build().createObjectNode();
        root.put("model", model).put("tokens", tokens).put("bytes", bytes);
        put(root, "computed", computed);
        put(root, "missed", missed);
        put(root, "from_memory", fromMemory);
        put(root, "from_files", fromFiles);
        return root;
    }

    private static void put(ObjectNode root, String name, Timing timing) {
        root.putObject(name).put("seconds", timing.median()).put("best_seconds", timing.best());
    }
}
