package baton.engine.sim;

import baton.engine.model.Logits;
import baton.engine.model.ModelRunner;
import baton.kv.KvCache;
import baton.kv.KvGroups;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.ForwardingScheduler;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerMetadata;
import baton.kv.connector.WorkerReport;
import baton.testkit.Forwarding;
import baton.testkit.SimNetwork;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.BooleanSupplier;

/**
 * Stands between an instance's core and its connector and model, and has an {@link AssertionError} ready when a block is handed out,
 * written or computed from while a transfer uses it in a way that this breaks, when a connector call comes out of turn, or when a
 * transfer takes longer than it may. It also lets the connector throw, in any call.
 */
final class InvariantChecker {
    private final SimNode node;
    private final SimNetwork network;
    private final KvConnector connector;
    private final ModelRunner runner;
    private final BooleanSupplier fails;
    private final BooleanSupplier connectorFails;
    private final long longestTransfer;
    /** Each request's blocks as last seen. */
    private final Map<String, Set<Integer>> tables = new HashMap<>();

    private final Set<String> known = new HashSet<>();
    /** Since when a load is under way, and blocks are kept for a reader. */
    private final Map<String, Long> loading = new HashMap<>();

    private final Map<String, Long> lent = new HashMap<>();
    /** The deadline for the release of blocks without a reader. */
    private final Map<String, Long> withoutReader = new HashMap<>();

    private Optional<KvCache> connected = Optional.empty();
    /** The connector has thrown, as it was meant to, and will be closed. */
    private boolean thrown;
    /** The first thing that was wrong. Thrown later too, as an engine survives a connector's exceptions. */
    private Optional<AssertionError> violation = Optional.empty();

    InvariantChecker(
            SimNode node,
            SimNetwork network,
            KvConnector connector,
            ModelRunner runner,
            BooleanSupplier fails,
            BooleanSupplier connectorFails,
            long longestTransfer) {
        this.node = node;
        this.network = network;
        this.connector = connector;
        this.runner = runner;
        this.fails = fails;
        this.connectorFails = connectorFails;
        this.longestTransfer = longestTransfer;
    }

    private AssertionError broken(String what) {
        AssertionError error = new AssertionError(node.name() + " in its life " + node.epoch() + ": " + what);
        violation = violation.or(() -> Optional.of(error));
        return error;
    }

    private void throwViolation() {
        violation.ifPresent(error -> {
            throw error;
        });
    }

    /** Whether the connector has thrown, so that the engine goes on without it. */
    boolean hasThrown() {
        return thrown;
    }

    /** Throws an injected failure; called at the beginning and at the end of calls. */
    private void mayFail() {
        if (!thrown && connectorFails.getAsBoolean()) {
            thrown = true;
            throw new IllegalStateException("simulated failure of the connector");
        }
    }

    /** Drops the state of all requests. */
    private void forget() {
        tables.clear();
        known.clear();
        loading.clear();
        lent.clear();
        withoutReader.clear();
    }

    /** The answer of an ended request is lost, and no reader has its blocks' names otherwise. */
    void hasNoReader(String request, long longestNanos) {
        if (lent.containsKey(request)) {
            withoutReader.put(request, node.ticker().nanos() + longestNanos);
        }
    }

    /** Whether a load puts bytes into a block of the pool that the connector uses. */
    private boolean isWritten(int block) {
        return connected.isPresent() && network.isWritten(connected.get().block(block));
    }

    private long bytes() {
        return runner.cache().layout().blockBytes();
    }

    private void handedOut(String request, int block) {
        if (network.isRead(node.endpoint(), block * bytes(), bytes())) {
            throw broken("block=" + block + " is given to request " + request + " while a peer reads it");
        }
        if (isWritten(block)) {
            throw broken("block=" + block + " is given to request " + request + " while a load writes it");
        }
    }

    /** No transfer is under way for longer than it may. */
    void checkDeadlines() {
        throwViolation();
        long now = node.ticker().nanos();
        loading.forEach((request, since) -> {
            if (now - since > longestTransfer) {
                throw broken("request " + request + " waits for its load since " + (now - since) + " ns");
            }
        });
        lent.forEach((request, since) -> {
            if (now - since > longestTransfer) {
                throw broken("request " + request + " lends its blocks since " + (now - since) + " ns");
            }
        });
        withoutReader.forEach((request, until) -> {
            if (now > until) {
                throw broken(
                        "request " + request + " keeps its blocks without a reader since " + (now - until) + " ns");
            }
        });
    }

    /** Nothing is left of any request. */
    void checkOver() {
        throwViolation();
        if (!tables.isEmpty() || !known.isEmpty() || !loading.isEmpty() || !lent.isEmpty()) {
            throw broken("is not over: tables=%s known=%s loading=%s lent=%s"
                    .formatted(tables, known, loading.keySet(), lent.keySet()));
        }
    }

    @SuppressWarnings({"UnusedMethod", "EffectivelyPrivate"}) // called by Forwarding
    ModelRunner runner() {
        return Forwarding.to(ModelRunner.class, runner, new Object() {
            public Logits forward(List<ModelRunner.SequenceSlice> slices, ModelRunner.LayerHooks hooks) {
                int blockSize = runner.cache().layout().blockSize();
                for (ModelRunner.SequenceSlice slice : slices) {
                    int end = slice.start() + slice.tokens().length;
                    if (end == slice.start() && slice.hidden().isEmpty()) {
                        throw broken("a step has nothing to compute for a request, so nothing to sample from");
                    }
                    for (int[] blockTable : slice.blockTables()) {
                        for (int i = 0; i * blockSize < end; i++) {
                            int block = blockTable[i];
                            if (isWritten(block)) {
                                throw broken("block=" + block + " is used while a load writes it");
                            }
                            if ((i + 1) * blockSize > slice.start()
                                    && network.isRead(node.endpoint(), block * bytes(), bytes())) {
                                throw broken("block=" + block + " is computed while a peer reads it");
                            }
                        }
                    }
                }
                if (fails.getAsBoolean()) {
                    throw new IllegalStateException("simulated");
                }
                return runner.forward(slices, hooks);
            }
        });
    }

    KvConnector connector() {
        return new KvConnector() {
            @Override
            public Set<String> names() {
                return connector.names();
            }

            @Override
            public SchedulerConnector scheduler(ConnectorContext context) {
                return new Deciding(
                        connector.scheduler(context), context.layout().blockSize(), context.groups());
            }

            @Override
            public WorkerConnector worker(ConnectorContext context, Rank rank) {
                WorkerConnector worker = connector.worker(context, rank);
                return Forwarding.to(WorkerConnector.class, worker, new Moving(worker));
            }
        };
    }

    private final class Deciding extends ForwardingScheduler {
        private final int blockSize;
        private final KvGroups groups;
        private boolean lastMatchAsync;

        private Deciding(SchedulerConnector inner, int blockSize, KvGroups groups) {
            super(inner);
            this.blockSize = blockSize;
            this.groups = groups;
        }

        private boolean isNull(int block) {
            return groups.hasWindows() && block == KvGroups.NULL_BLOCK;
        }

        private void expectKnown(KvRequest request) {
            if (!known.contains(request.id())) {
                throw broken("the connector does not know request " + request.id());
            }
        }

        @Override
        public void onNewRequest(KvRequest request) {
            mayFail();
            if (!known.add(request.id())) {
                throw broken("request " + request.id() + " is new twice");
            }
            super.onNewRequest(request);
        }

        @Override
        public KvMatch match(KvRequest request, int computedTokens) {
            mayFail();
            expectKnown(request);
            if (computedTokens % blockSize != 0 || computedTokens >= request.length()) {
                throw broken("match with computedTokens=" + computedTokens + " of " + request.length());
            }
            KvMatch match = super.match(request, computedTokens);
            lastMatchAsync = match instanceof KvMatch.Tokens tokens && tokens.async();
            return match;
        }

        @Override
        public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
            mayFail();
            expectKnown(request);
            Set<Integer> table = new HashSet<>();
            int size = blockTable.length / groups.size();
            for (int i = 0; i < blockTable.length; i++) {
                if (isNull(blockTable[i])) {
                    continue;
                }
                if (i % size >= computedTokens / blockSize) {
                    handedOut(request.id(), blockTable[i]);
                }
                if (!table.add(blockTable[i])) {
                    throw broken("block=" + blockTable[i] + " is twice in request " + request.id());
                }
            }
            if (size * blockSize < computedTokens + externalTokens) {
                throw broken("no room for externalTokens=" + externalTokens + " of request " + request.id());
            }
            tables.put(request.id(), table);
            if (externalTokens > 0 && lastMatchAsync) {
                loading.put(request.id(), node.ticker().nanos());
            }
            super.onAllocated(request, blockTable, computedTokens, externalTokens);
        }

        @Override
        public ConnectorMetadata buildMetadata(ScheduledStep step) {
            mayFail();
            Set<String> scheduled = new HashSet<>();
            for (ScheduledRequest each : step.requests()) {
                String id = each.request().id();
                if (!scheduled.add(id) || loading.containsKey(id)) {
                    throw broken("request " + id + " is scheduled twice, or before its load is over");
                }
                Set<Integer> before = tables.getOrDefault(id, Set.of());
                Set<Integer> table = new HashSet<>();
                for (int block : each.blockTable()) {
                    if (!isNull(block) && table.add(block) && !before.contains(block)) {
                        handedOut(id, block);
                    }
                }
                tables.put(id, table);
            }
            for (String id : step.preempted()) {
                if (!scheduled.contains(id)) {
                    tables.remove(id);
                }
            }
            return super.buildMetadata(step);
        }

        @Override
        public void onStepDone(WorkerReport report, Map<Rank, WorkerMetadata> metadata) {
            mayFail();
            super.onStepDone(report, metadata);
        }

        @Override
        public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
            mayFail();
            if (!known.remove(request.id())) {
                throw broken("request " + request.id() + " ends twice");
            }
            tables.remove(request.id());
            Release release = super.onFinished(request, end, blockTable);
            if (release.delayed()) {
                lent.put(request.id(), node.ticker().nanos());
            }
            mayFail();
            return release;
        }

        @Override
        public void onAnswerLost(String requestId) {
            mayFail();
            if (!lent.containsKey(requestId)) {
                throw broken("request " + requestId + " lends no blocks when its answer is lost");
            }
            super.onAnswerLost(requestId);
        }
    }

    @SuppressWarnings({"UnusedMethod", "EffectivelyPrivate"}) // called by Forwarding
    private final class Moving {
        private final WorkerConnector inner;

        private Moving(WorkerConnector inner) {
            this.inner = inner;
        }

        public void register(KvCache cache) {
            connected = Optional.of(cache);
            inner.register(cache);
        }

        public void startLoad(ConnectorMetadata metadata) {
            mayFail();
            inner.startLoad(metadata);
            mayFail();
        }

        public void waitForLayerLoad(int layer) {
            mayFail();
            inner.waitForLayerLoad(layer);
        }

        public void saveLayer(int layer) {
            mayFail();
            inner.saveLayer(layer);
        }

        public void waitForSave() {
            mayFail();
            inner.waitForSave();
        }

        public WorkerReport report(Set<String> finished) {
            mayFail();
            WorkerReport report = inner.report(finished);
            report.received().forEach(loading::remove);
            report.sent().forEach(lent::remove);
            report.sent().forEach(withoutReader::remove);
            mayFail();
            return report;
        }

        public void close() {
            inner.close();
            forget();
            // A mirror of a device's pool is unmapped, and another instance may have memory there.
            connected = connected.filter(pool -> pool.equals(runner.cache()));
        }
    }
}
