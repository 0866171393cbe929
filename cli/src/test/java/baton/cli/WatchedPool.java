package baton.cli;

import baton.kv.KvCache;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ForwardingScheduler;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvConnectors;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.testkit.Forwarding;
import java.util.Comparator;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.zip.CRC32C;

/** The content of an engine's pool, of all ranks together and token by token, whatever its block size and number of ranks. */
final class WatchedPool {
    /** The pools by engine id: an engine makes its connector itself, from a name, so there is no other way to it. */
    private static final Map<String, WatchedPool> ALL = new ConcurrentHashMap<>();

    private final Map<Rank, KvCache> pools = new ConcurrentSkipListMap<>(Comparator.comparingInt(Rank::tensor));
    private final Map<String, int[]> digests = new ConcurrentHashMap<>();
    private final Map<String, Loaded> loads = new ConcurrentHashMap<>();

    /** Tokens {@code [from, to)} came from elsewhere. */
    record Loaded(int from, int to) {}

    /** Watches the engine of that id, if its connector is one of those here. */
    static WatchedPool of(String engineId) {
        return ALL.computeIfAbsent(engineId, _ -> new WatchedPool());
    }

    static void forget(String engineId) {
        ALL.remove(engineId);
    }

    /** A digest for each token of the prompt, as the pool had them when the request ended. */
    Optional<int[]> digests(String requestId) {
        return Optional.ofNullable(digests.get(requestId));
    }

    /** The last load that the connector was given for the request. */
    Optional<Loaded> loaded(String requestId) {
        return Optional.ofNullable(loads.get(requestId));
    }

    private int digest(int[] blockTable, int token) {
        CRC32C crc = new CRC32C();
        int layers = pools.values().iterator().next().layout().layers();
        for (int layer = 0; layer < layers; layer++) {
            for (KvCache pool : pools.values()) {
                int blockSize = pool.layout().blockSize();
                for (int head = 0; head < pool.layout().kvHeads(); head++) {
                    crc.update(pool.block(blockTable[token / blockSize])
                            .asSlice(
                                    pool.layout().entryOffset(layer, head, token % blockSize),
                                    pool.layout().entryBytes())
                            .asByteBuffer());
                }
            }
        }
        return (int) crc.getValue();
    }

    private void ended(KvRequest request, int[] blockTable) {
        int tokens = request.promptLength();
        if (blockTable.length > 0) {
            int[] each = new int[tokens];
            for (int token = 0; token < tokens; token++) {
                each[token] = digest(blockTable, token);
            }
            digests.put(request.id(), each);
        }
    }

    /** {@code NixlConnector}, watched. */
    public static final class Pull extends Watched {
        public Pull() {
            super("NixlConnector");
        }
    }

    /** {@code NixlPushConnector}, watched. */
    public static final class Push extends Watched {
        public Push() {
            super("NixlPushConnector");
        }
    }

    abstract static class Watched implements KvConnector {
        private final KvConnector connector;

        private Watched(String name) {
            connector = KvConnectors.find(
                            KvTransferConfig.builder(name, KvRole.BOTH).build())
                    .orElseThrow();
        }

        @Override
        public Set<String> names() {
            return Set.of();
        }

        @Override
        public SchedulerConnector scheduler(ConnectorContext context) {
            return new Scheduler(
                    connector.scheduler(context), of(context.config().engineId()));
        }

        @Override
        @SuppressWarnings({"UnusedMethod", "EffectivelyPrivate"}) // called by Forwarding
        public WorkerConnector worker(ConnectorContext context, Rank rank) {
            WorkerConnector worker = connector.worker(context, rank);
            WatchedPool pool = of(context.config().engineId());
            return Forwarding.to(WorkerConnector.class, worker, new Object() {
                public void register(KvCache cache) {
                    pool.pools.put(rank, cache);
                    worker.register(cache);
                }
            });
        }
    }

    private static final class Scheduler extends ForwardingScheduler {
        private final WatchedPool pool;

        private Scheduler(SchedulerConnector inner, WatchedPool pool) {
            super(inner);
            this.pool = pool;
        }

        @Override
        public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
            if (externalTokens > 0) {
                pool.loads.put(request.id(), new Loaded(computedTokens, computedTokens + externalTokens));
            }
            super.onAllocated(request, blockTable, computedTokens, externalTokens);
        }

        @Override
        public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
            pool.ended(request, blockTable);
            return super.onFinished(request, end, blockTable);
        }
    }
}
