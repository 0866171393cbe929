package baton.cli;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.List;
import picocli.CommandLine.Option;

/** Which web pages may use a server, named as vLLM's. */
final class OriginOptions {
    private static final String FIELD = "allowed_origins";

    @Option(
            names = "--allowed-origins",
            paramLabel = "JSON",
            defaultValue = "[]",
            description =
                    "Origins with web pages that may use the server, as '[\"https://host:port\"]'; under their host"
                            + " names a proxy may call it at the loopback address; '[\"*\"]': all (default: its own only).")
    private String allowedOrigins;

    /** @throws ConfigException if it is not an array of strings */
    List<String> allowed() {
        return JsonFields.parse(FIELD, "{\"" + FIELD + "\":" + allowedOrigins + "}")
                .strings(FIELD)
                .orElse(List.of());
    }
}
