package baton.connectors.sharedstorage;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Rank;
import baton.kv.connector.Rehearsal;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.store.safetensors.ScratchDirectory;
import baton.store.safetensors.SharedStorage;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Hands KV caches over through a directory: {@code SharedStorageConnector}, which vLLM renamed to {@code ExampleConnector}.
 * A producer stores the KV of a prompt's full blocks under a name made from the prompt's tokens; a consumer loads the longest
 * stored prefix of a prompt within the step that schedules it. Directories are exchangeable with vLLM's
 * ({@link SharedStorage}, {@link EntryNames}).
 *
 * <p>Settings in {@code kv_connector_extra_config}: {@code shared_storage_path}, default {@code /tmp};
 * {@code shared_storage_timeout_seconds}, default 60, the longest that a step waits for a request's load or save.
 */
public final class SharedStorageConnector implements KvConnector {
    private static final Logger log = LoggerFactory.getLogger(SharedStorageConnector.class);

    /** Of the engine whose workers are being made. */
    private Optional<Transfers> transfers = Optional.empty();

    @Override
    public Set<String> names() {
        return Set.of("SharedStorageConnector", "ExampleConnector");
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new SharedStorageScheduler(context, Settings.of(context));
    }

    /** The first rank's worker comes before the others', which share its transfers. */
    @Override
    public synchronized WorkerConnector worker(ConnectorContext context, Rank rank) {
        if (rank.equals(Rank.FIRST)) {
            transfers = Optional.of(new Transfers(context, Settings.of(context)));
        }
        return new SharedStorageWorker(
                transfers.orElseThrow(() -> new IllegalStateException("rank " + rank + " comes before the first")),
                rank);
    }

    /** Through a directory of its own, which does not outlive it. */
    @Override
    public Optional<Rehearsal> rehearsal(KvTransferConfig config) throws IOException {
        ScratchDirectory scratch = ScratchDirectory.create();
        return Optional.of(new Rehearsal(
                new SharedStorageConnector(),
                through(scratch.path(), KvRole.PRODUCER),
                through(scratch.path(), KvRole.CONSUMER),
                "rehearsal-%d"::formatted,
                scratch::close));
    }

    private static KvTransferConfig through(Path directory, KvRole role) {
        return KvTransferConfig.builder("SharedStorageConnector", role)
                .extra(Settings.PATH, directory)
                .build();
    }

    /** The layers that a rank has. */
    record LayerNames(List<String> names) implements HandshakeMetadata {}

    static SharedStorage.Format format(ConnectorContext context, List<String> layerNames) {
        return new SharedStorage.Format(
                layerNames,
                context.modelLayout().kvHeads(),
                context.modelLayout().headDim(),
                context.modelLayout().dtype(),
                context.model().digest());
    }

    record Settings(Path root, Duration timeout) {
        private static final String PATH = "shared_storage_path";
        private static final String TIMEOUT = "shared_storage_timeout_seconds";

        static Settings of(ConnectorContext context) {
            JsonFields extra = context.config().extra();
            Set<String> unknown = new TreeSet<>(extra.names());
            unknown.removeAll(Set.of(PATH, TIMEOUT));
            if (!unknown.isEmpty()) {
                log.warn("settings {} mean nothing to this connector; known are {}, {}", unknown, PATH, TIMEOUT);
            }
            double seconds = extra.number(TIMEOUT).orElse(60.0);
            if (!(seconds > 0 && seconds <= 86_400)) {
                throw new ConfigException(
                        extra.field(TIMEOUT), "is " + seconds + ", must be more than 0 and at most 86400");
            }
            return new Settings(
                    SharedStorage.root(extra.field(PATH), extra.string(PATH).orElse("/tmp")),
                    Duration.ofNanos((long) (seconds * 1e9)));
        }
    }
}
