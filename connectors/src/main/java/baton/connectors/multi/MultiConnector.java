package baton.connectors.multi;

import baton.connectors.BuiltInConnector;
import baton.kv.KvTransferConfig;
import baton.kv.connector.CacheSource;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvConnectors;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WarmUpPair;
import baton.kv.connector.WorkerConnector;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Function;

/**
 * Several connectors in one engine: vLLM's {@code MultiConnector}. The setting {@code connectors} in {@code kv_connector_extra_config} is
 * a list of {@code KVTransferConfig} objects, the children, in the order in which they are asked for a prompt. The first that has
 * something of it loads it; all of them save.
 *
 * <p>A child that throws is switched off by itself. Its loads become invalid, and blocks that it holds are released, as soon as all its
 * workers are closed.
 */
public final class MultiConnector extends BuiltInConnector {
    private final Function<KvTransferConfig, Optional<KvConnector>> find;
    /** The children by the configuration that contains them. Guarded by the monitor, as is {@link #workerFailures}. */
    private final Map<KvTransferConfig, List<Child>> known = new HashMap<>();

    /** The failures in the latest engine: all its workers are made before another engine's. */
    private List<ChildFailure> workerFailures = List.of();

    public MultiConnector() {
        this(KvConnectors::find);
    }

    /** @param find finds the connector that a child's configuration names */
    public MultiConnector(Function<KvTransferConfig, Optional<KvConnector>> find) {
        super(Set.of("MultiConnector"), Children.SETTINGS, CacheSource.EXTERNAL_UNSPECIFIED);
        this.find = find;
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        for (Child child : children(config)) {
            child.within(() -> {
                KvConnectors.check(child.connector(), child.config(), ranks, child.path());
                return true;
            });
        }
    }

    @Override
    public boolean needsHostMemory(KvTransferConfig config) {
        return children(config).stream().anyMatch(child -> child.connector().needsHostMemory(child.config()));
    }

    @Override
    public boolean takesGroups(KvTransferConfig config) {
        return children(config).stream().allMatch(child -> child.connector().takesGroups(child.config()));
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        List<Child> children = children(context.config());
        List<SchedulerConnector> schedulers = new ArrayList<>();
        try {
            for (Child child : children) {
                schedulers.add(child.within(() -> child.connector().scheduler(context.with(child.config()))));
            }
        } catch (RuntimeException | Error e) {
            closeAfter(schedulers, e);
            throw e;
        }
        return new MultiScheduler(context, children, schedulers);
    }

    /** Makes a rank's worker, the first rank's first. The first rank's worker notifies the others which of their children have failed. */
    @Override
    public synchronized WorkerConnector worker(ConnectorContext context, Rank rank) {
        List<Child> children = children(context.config());
        if (rank.equals(Rank.FIRST)) {
            workerFailures = children.stream()
                    .map(child -> new ChildFailure(child.label()))
                    .toList();
        }
        if (workerFailures.size() != children.size()) {
            throw new IllegalStateException("rank " + rank + " comes before the first");
        }
        List<MultiWorker.Part> parts = new ArrayList<>();
        try {
            for (int i = 0; i < children.size(); i++) {
                Child child = children.get(i);
                parts.add(new MultiWorker.Part(
                        child.label(),
                        child.within(() -> child.connector().worker(context.with(child.config()), rank)),
                        workerFailures.get(i)));
            }
        } catch (RuntimeException | Error e) {
            closeAfter(parts.stream().map(MultiWorker.Part::connector).toList(), e);
            throw e;
        }
        return new MultiWorker(parts);
    }

    /** The first child's that has one: that child is asked first for a prompt. */
    @Override
    public Optional<WarmUpPair> warmUpPair(KvTransferConfig config) throws IOException {
        for (Child child : children(config)) {
            Optional<WarmUpPair> pair = child.connector().warmUpPair(child.config());
            if (pair.isPresent()) {
                return pair;
            }
        }
        return Optional.empty();
    }

    private synchronized List<Child> children(KvTransferConfig config) {
        List<Child> children = known.get(config);
        if (children == null) {
            children = Children.of(config, find);
            known.put(config, children);
        }
        return children;
    }

    private static void closeAfter(List<? extends AutoCloseable> connectors, Throwable failure) {
        for (AutoCloseable connector : connectors) {
            try {
                connector.close();
            } catch (Exception e) {
                failure.addSuppressed(e);
            }
        }
    }
}
