package baton.kv.connector;

import baton.kv.ConfigException;
import baton.kv.KvTransferConfig;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.ServiceConfigurationError;
import java.util.ServiceLoader;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Finds the connector that a configuration names. */
public final class KvConnectors {
    private static final Logger log = LoggerFactory.getLogger(KvConnectors.class);

    private KvConnectors() {}

    /**
     * The configured connector, or empty if none is configured. A class in the package or jar
     * {@code kv_connector_module_path} is preferred to a built-in connector of the same name.
     *
     * @throws ConfigException if there is no such connector or it cannot be made
     */
    public static Optional<KvConnector> find(KvTransferConfig config) {
        return config.connector()
                .map(name -> config.modulePath()
                        .map(path -> OwnConnectors.load(path, name))
                        .orElseGet(() -> builtIn(name)));
    }

    /**
     * Refuses, ahead of everything else, a configuration that cannot work, and warns once of settings that mean nothing.
     *
     * @param ranks that the engine has
     * @throws ConfigException if there is no such connector, or it cannot work so
     */
    public static void check(KvTransferConfig config, int ranks) {
        Optional<KvConnector> connector = find(config);
        if (connector.isEmpty() && (!config.extra().isEmpty() || config.role().isPresent())) {
            log.warn("KV caches stay in this instance: kv_connector is not set, so no other setting has an effect");
        }
        connector.ifPresent(found -> check(found, config, ranks, ""));
    }

    /**
     * The same for a connector that was found before.
     *
     * @param path of the configuration within another connector's, for the warning; empty if it is the engine's
     * @throws ConfigException if it cannot work so
     */
    public static void check(KvConnector connector, KvTransferConfig config, int ranks, String path) {
        connector.settingNames().ifPresent(known -> {
            Set<String> given = new TreeSet<>(config.extra().names());
            given.removeAll(known);
            if (!given.isEmpty()) {
                log.warn(
                        "{}kv_connector_extra_config: {} mean nothing to {}, which knows {}",
                        path.isEmpty() ? "" : path + ".",
                        given,
                        config.connector().orElseThrow(),
                        new TreeSet<>(known));
            }
        });
        connector.check(config, ranks);
    }

    /**
     * Names of the connectors on the class path, in order.
     *
     * @throws ConfigException if one of them does not load
     */
    public static List<String> names() {
        return List.copyOf(builtIn().keySet());
    }

    private static Map<String, KvConnector> builtIn() {
        Map<String, KvConnector> known = new TreeMap<>();
        try {
            for (KvConnector connector : ServiceLoader.load(KvConnector.class)) {
                for (String connectorName : connector.names()) {
                    if (known.put(connectorName, connector) != null) {
                        throw new ConfigException(
                                "kv_connector",
                                "Connector '" + connectorName + "' is registered twice on the class path");
                    }
                }
            }
        } catch (ServiceConfigurationError e) {
            throw new ConfigException("kv_connector", "a connector on the class path does not load: " + e, e);
        }
        return known;
    }

    private static KvConnector builtIn(String name) {
        Map<String, KvConnector> known = builtIn();
        KvConnector connector = known.get(name);
        if (connector == null) {
            throw new ConfigException(
                    "kv_connector",
                    "Unsupported connector type: " + name + "; known: " + List.copyOf(known.keySet())
                            + "; a class of your own needs kv_connector_module_path, its package or its jar");
        }
        return connector;
    }
}
