package baton.kv;

import java.util.Arrays;
import java.util.stream.Collectors;

/** An instance's role in hand-overs: it gives KV caches, takes them, or both. */
public enum KvRole {
    PRODUCER("kv_producer"),
    CONSUMER("kv_consumer"),
    BOTH("kv_both");

    private final String configName;

    KvRole(String configName) {
        this.configName = configName;
    }

    /** The value of {@code kv_role}. */
    public String configName() {
        return configName;
    }

    public boolean produces() {
        return this != CONSUMER;
    }

    public boolean consumes() {
        return this != PRODUCER;
    }

    /** @throws ConfigException if {@code name} is no role */
    public static KvRole parse(String name) {
        return Arrays.stream(values())
                .filter(role -> role.configName.equals(name))
                .findFirst()
                .orElseThrow(() -> new ConfigException(
                        "kv_role", "Unsupported kv_role: " + name + ". Supported roles are " + supported()));
    }

    /** All roles, for error messages. */
    static String supported() {
        return Arrays.stream(values()).map(KvRole::configName).collect(Collectors.joining(", ", "(", ")"));
    }
}
