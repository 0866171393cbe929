package baton.kvserver;

import baton.kvserver.Counters.Kind;
import java.util.HashSet;
import java.util.Locale;
import java.util.Set;

/** The Prometheus text of a server. */
final class MetricsText {
    private static final String PREFIX = "baton:kv_server_";

    private MetricsText() {}

    static String text(KvServer server) {
        StringBuilder text = new StringBuilder(4096);
        Set<String> families = new HashSet<>();
        for (Kind kind : Kind.values()) {
            if (families.add(kind.family)) {
                text.append("# TYPE ").append(PREFIX).append(kind.family).append(" counter\n");
            }
            text.append(String.format(
                    Locale.ROOT,
                    "%s%s{%s} %d%n",
                    PREFIX,
                    kind.family,
                    kind.labels,
                    server.counters().count(kind)));
        }
        Cache.Usage usage = server.cache().usage();
        gauge(text, "connections", server.connections());
        gauge(text, "values", usage.values());
        gauge(text, "values_in_memory", usage.resident());
        gauge(text, "memory_used_bytes", usage.bytes());
        gauge(text, "memory_limit_bytes", usage.limit());
        server.files().ifPresent(files -> {
            gauge(text, "disk_used_bytes", files.bytes());
            gauge(text, "disk_limit_bytes", files.mostBytes());
        });
        return text.toString();
    }

    private static void gauge(StringBuilder text, String name, long value) {
        text.append("# TYPE ").append(PREFIX).append(name).append(" gauge\n");
        text.append(PREFIX).append(name).append(' ').append(value).append('\n');
    }
}
