package baton.connectors.multi;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvTransferConfig;
import baton.kv.Setting;
import baton.kv.connector.KvConnector;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/** Reads the children's configurations: vLLM's {@code connectors}, a list of {@code KVTransferConfig} objects. */
final class Children {
    static final String CONNECTORS = "connectors";
    private static final String CONNECTOR = "kv_connector";
    private static final String ENGINE_ID = "engine_id";
    private static final String ROLE = "kv_role";
    private static final String LOAD_FAILURE_POLICY = "kv_load_failure_policy";
    private static final String VERIFY_KV = KvTransferConfig.VERIFY_KV;

    /** Settings that are passed on to children that know them. */
    static final List<String> ACCESS = List.of(
            KvTransferConfig.AUTH_SECRET_FILE, KvTransferConfig.ENCRYPTION, KvTransferConfig.ALLOW_UNAUTHENTICATED);

    /** All of them. */
    static final List<Setting> SETTINGS = List.of(
            Setting.absent(
                    CONNECTORS,
                    "required",
                    "A list of `KVTransferConfig` objects, one for each connector; in each `engine_id`, `kv_role`"
                            + " and `kv_load_failure_policy` default to the values here."),
            Setting.absent(
                    KvTransferConfig.AUTH_SECRET_FILE,
                    "none",
                    "The value for all connectors that take this key and do not set it."),
            Setting.absent(KvTransferConfig.ENCRYPTION, "`off`", "Likewise."),
            Setting.absent(KvTransferConfig.ALLOW_UNAUTHENTICATED, "`false`", "Likewise."));

    private Children() {}

    /**
     * @param parent the configuration that contains them
     * @param find finds the connector that a configuration names
     * @throws ConfigException that names the child
     */
    static List<Child> of(KvTransferConfig parent, Function<KvTransferConfig, Optional<KvConnector>> find) {
        String field = parent.extra().field(CONNECTORS);
        List<JsonFields> given = parent.extra().objects(CONNECTORS).orElse(List.of());
        if (given.isEmpty()) {
            throw new ConfigException(
                    field,
                    "must be a list of KVTransferConfig objects, one for each connector, e.g."
                            + " [{\"kv_connector\": \"NixlConnector\"}, {\"kv_connector\": \"SharedStorageConnector\"}]");
        }
        List<Child> children = new ArrayList<>();
        List<String> names = given.stream()
                .map(child -> child.value(CONNECTOR)
                        .map(name -> name.isString() ? name.asString() : "")
                        .orElse(""))
                .toList();
        for (int i = 0; i < given.size(); i++) {
            String path = field + "[" + i + "]";
            ObjectNode json = given.get(i).toJson();
            String label = Collections.frequency(names, names.get(i)) > 1 ? names.get(i) + "[" + i + "]" : names.get(i);
            children.add(Child.within(path, () -> {
                KvTransferConfig config = config(parent, json);
                KvConnector connector = find.apply(config)
                        .orElseThrow(() -> new ConfigException(CONNECTOR, "is missing; it names the connector"));
                return new Child(label, path, connector, withAccess(config, connector, parent));
            }));
        }
        return List.copyOf(children);
    }

    /** One setting says which peers are admitted, for all connectors that have ports. */
    private static KvTransferConfig withAccess(KvTransferConfig child, KvConnector connector, KvTransferConfig parent) {
        KvTransferConfig with = child;
        for (String name : ACCESS) {
            boolean known =
                    connector.settingNames().map(names -> names.contains(name)).orElse(false);
            Optional<JsonNode> value = parent.extra().value(name);
            if (known && value.isPresent() && child.extra().value(name).isEmpty()) {
                with = with.withExtra(name, value.get());
            }
        }
        return with;
    }

    /** A setting that a child does not have is its parent's. */
    private static KvTransferConfig config(KvTransferConfig parent, ObjectNode json) {
        if (!json.hasNonNull(CONNECTOR)) {
            throw new ConfigException(CONNECTOR, "is missing; it names the connector");
        }
        if (!json.hasNonNull(ENGINE_ID)) {
            json.put(ENGINE_ID, parent.engineId());
        }
        if (!json.hasNonNull(ROLE)) {
            parent.role().ifPresent(role -> json.put(ROLE, role.configName()));
        }
        String policy = parent.loadFailurePolicy().configName();
        if (!json.hasNonNull(LOAD_FAILURE_POLICY)) {
            json.put(LOAD_FAILURE_POLICY, policy);
        }
        String verifies = parent.verifyKv().configName();
        if (!json.hasNonNull(VERIFY_KV)) {
            json.put(VERIFY_KV, verifies);
        }
        KvTransferConfig config = KvTransferConfig.fromJson(JsonFields.of("", json));
        if (config.verifyKv() != parent.verifyKv()) {
            throw new ConfigException(
                    VERIFY_KV,
                    "is " + config.verifyKv().configName()
                            + ", but the engine compares all loads alike, as is set on the connector that contains this one: "
                            + verifies);
        }
        if (config.loadFailurePolicy() != parent.loadFailurePolicy()) {
            throw new ConfigException(
                    LOAD_FAILURE_POLICY,
                    "is " + config.loadFailurePolicy().configName()
                            + ", but the engine has one policy, which is set on the connector that contains this one: "
                            + policy);
        }
        return config;
    }
}
