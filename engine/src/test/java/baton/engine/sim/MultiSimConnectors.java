package baton.engine.sim;

import baton.connectors.multi.MultiConnector;
import baton.kv.JsonFields;
import baton.kv.KvTransferConfig;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.random.RandomGenerator;

/**
 * NixlConnector and SharedStorageConnector in one MultiConnector, in either order, with all faults of both. Besides, one of them throws,
 * in any call.
 */
final class MultiSimConnectors implements SimNode.SimConnectors {
    private static final String NIXL = "NixlConnector";
    private static final String STORAGE = "SharedStorageConnector";

    private final RandomGenerator random;
    private final NixlSimConnectors nixl;
    private final StorageSimConnectors storage;
    private final boolean storageFirst;
    private final boolean nested;
    private double failures;
    private long failed;
    /** Instances in which NixlConnector, or any connector, has thrown in their present lives. */
    private final Set<String> withoutNixl = new HashSet<>();

    private final Set<String> withoutAny = new HashSet<>();

    MultiSimConnectors(SimCluster.Site site) {
        this.random = site.random();
        this.nixl = new NixlSimConnectors(site, false);
        this.storage = new StorageSimConnectors(site);
        this.storageFirst = random.nextBoolean();
        this.nested = random.nextInt(4) == 0;
        this.failures = random.nextInt(3) == 0 ? 0.0005 : 0;
    }

    @Override
    public KvConnector connect(SimNode node) {
        withoutNixl.remove(node.name());
        withoutAny.remove(node.name());
        Map<String, KvConnector> children = Map.of(
                NIXL, failing(node, NIXL, nixl.connect(node)), STORAGE, failing(node, STORAGE, storage.connect(node)));
        return multi(children);
    }

    private static KvConnector multi(Map<String, KvConnector> children) {
        return new MultiConnector((KvTransferConfig config) ->
                config.connector().map(name -> children.containsKey(name) ? children.get(name) : multi(children)));
    }

    @Override
    public Map<String, Object> settings(String instance) {
        List<Object> connectors = new ArrayList<>();
        connectors.add(child(NIXL, nixl.settings(instance)));
        connectors.add(storageFirst ? 0 : 1, child(STORAGE, storage.settings(instance)));
        Map<String, Object> settings = Map.of("connectors", connectors);
        return nested ? Map.of("connectors", List.of(child("MultiConnector", settings))) : settings;
    }

    private static Map<String, Object> child(String name, Map<String, Object> settings) {
        return Map.of("kv_connector", name, "kv_connector_extra_config", settings);
    }

    private KvConnector failing(SimNode node, String name, KvConnector connector) {
        return new KvConnector() {
            @Override
            public Set<String> names() {
                return connector.names();
            }

            @Override
            public SchedulerConnector scheduler(ConnectorContext context) {
                return throwing(SchedulerConnector.class, connector.scheduler(context));
            }

            @Override
            public WorkerConnector worker(ConnectorContext context, Rank rank) {
                return throwing(WorkerConnector.class, connector.worker(context, rank));
            }

            private <T> T throwing(Class<T> type, T inner) {
                Set<String> notThere = Set.of(
                        "onHandshakeMetadata",
                        "advertisedKvTransferParams",
                        "register",
                        "handshakeMetadata",
                        "wantsHidden",
                        "close");
                return type.cast(Proxy.newProxyInstance(
                        type.getClassLoader(), new Class<?>[] {type}, (_, method, arguments) -> {
                            boolean fails = !notThere.contains(method.getName())
                                    && failures > 0
                                    && random.nextDouble() < failures;
                            if (fails) {
                                failed++;
                                withoutAny.add(node.name());
                                if (name.equals(NIXL)) {
                                    withoutNixl.add(node.name());
                                }
                            }
                            if (fails && random.nextBoolean()) {
                                throw new IllegalStateException("simulated failure ahead of " + method.getName());
                            }
                            try {
                                Object result = method.invoke(inner, arguments);
                                if (fails) {
                                    throw new IllegalStateException("simulated failure after " + method.getName());
                                }
                                return result;
                            } catch (InvocationTargetException e) {
                                throw e.getCause();
                            }
                        }));
            }
        };
    }

    @Override
    public boolean isSymmetric() {
        return true;
    }

    @Override
    public Optional<JsonFields> passOn(Optional<JsonFields> params) {
        return nixl.passOn(params);
    }

    @Override
    public Optional<JsonFields> atOnce(String prefill) {
        return nixl.atOnce(prefill);
    }

    @Override
    public void poll(SimNode node) {
        nixl.poll(node);
        storage.poll(node);
    }

    @Override
    public boolean hasThrown(String instance) {
        return withoutAny.contains(instance);
    }

    /** Where the storage is asked first, it hands over whatever connections do. */
    @Override
    public Set<SimNode.Pair> calm() {
        failures = 0;
        storage.calm();
        storage.clear();
        Set<SimNode.Pair> broken = new HashSet<>(nixl.calm());
        broken.removeIf(
                pair -> storageFirst || withoutNixl.contains(pair.prefill()) || withoutNixl.contains(pair.decode()));
        return broken;
    }

    @Override
    public Map<String, Long> injected() {
        Map<String, Long> all = new HashMap<>(nixl.injected());
        storage.injected().forEach((fault, times) -> all.merge(fault, times, Long::sum));
        if (failed > 0) {
            all.put("connector in a connector fails", failed);
        }
        return all;
    }

    @Override
    public Duration longestTransfer() {
        return nixl.longestTransfer();
    }

    @Override
    public void close() {
        storage.close();
    }
}
