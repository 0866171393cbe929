package baton.connectors.sharedstorage;

import baton.connectors.BuiltInConnector;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.TemporaryDirectory;
import baton.kv.connector.CacheSource;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WarmUpPair;
import baton.kv.connector.WorkerConnector;
import baton.store.FileOperations;
import baton.store.IoThreads;
import baton.store.SystemIoThreads;
import baton.store.prompt.SharedStorage;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * Hands KV caches over through a directory: {@code SharedStorageConnector}, which vLLM renamed to {@code ExampleConnector}.
 * A producer stores the KV of a prompt's full blocks under a name made from the prompt's tokens; a consumer loads the longest
 * stored prefix of a prompt while the prompt waits. Directories are exchangeable with vLLM's
 * ({@link SharedStorage}, {@link EntryNames}), if settings say which layout vLLM's files have.
 *
 * <p>Settings in {@code kv_connector_extra_config}: {@code shared_storage_path}, default {@code /tmp};
 * {@code shared_storage_timeout_seconds}, default 60, the longest that a request waits for its load, or a step for a save;
 * {@code shared_storage_foreign_layout}, by default none, the layout of files without Baton's metadata;
 * {@code shared_storage_write_layout}, default {@code gpu}; {@code shared_storage_foreign_block_size}, by default this
 * instance's block size, that of the instances of vLLM.
 *
 * <p>All work on files after the start runs on threads beside the engine's. The scheduler waits for none of it, and a step only for its
 * saves, up to the timeout: whatever answered a prompt has stored it.
 */
public final class SharedStorageConnector extends BuiltInConnector {
    private final IoThreads threads;
    private final FileOperations files;

    /** The transfers of the engine that is getting its workers. Guarded by the monitor. */
    private Optional<FileTransfers> transfers = Optional.empty();

    public SharedStorageConnector() {
        this(new SystemIoThreads(), FileOperations.SYSTEM);
    }

    /**
     * @param threads for all work on files after the start
     * @param files the file system
     */
    public SharedStorageConnector(IoThreads threads, FileOperations files) {
        super(Set.of("SharedStorageConnector", "ExampleConnector"), SharedStorageSettings.SETTINGS, CacheSource.DISK);
        this.threads = threads;
        this.files = files;
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        Path root = SharedStorageSettings.root(config.extra());
        if (config.isProducer()) {
            SharedStorage.requireWritable(config.extra().field(SharedStorageSettings.PATH), root);
        }
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new SharedStorageScheduler(context, SharedStorageSettings.of(context), threads, files);
    }

    /** The first rank's worker is made first; the other ranks' workers share its files. */
    @Override
    public synchronized WorkerConnector worker(ConnectorContext context, Rank rank) {
        if (rank.equals(Rank.FIRST)) {
            transfers = Optional.of(new FileTransfers(context, SharedStorageSettings.of(context), threads, files));
        }
        return new SharedStorageWorker(
                transfers.orElseThrow(() -> new IllegalStateException("rank " + rank + " comes before the first")),
                rank);
    }

    /** Hand-overs through a temporary directory, which closing the pair deletes. */
    @Override
    public Optional<WarmUpPair> warmUpPair(KvTransferConfig config) throws IOException {
        TemporaryDirectory scratch = TemporaryDirectory.inMemory("baton-");
        return Optional.of(new WarmUpPair(
                new SharedStorageConnector(),
                through(scratch.path(), KvRole.PRODUCER),
                through(scratch.path(), KvRole.CONSUMER),
                "warm-up-%d"::formatted,
                scratch::close));
    }

    private static KvTransferConfig through(Path directory, KvRole role) {
        return KvTransferConfig.builder("SharedStorageConnector", role)
                .extra(SharedStorageSettings.PATH, directory)
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
                context.model().digest(),
                context.modelLayout().latent());
    }
}
