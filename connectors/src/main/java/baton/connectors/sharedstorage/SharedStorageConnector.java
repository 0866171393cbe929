package baton.connectors.sharedstorage;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WarmUpPair;
import baton.kv.connector.WorkerConnector;
import baton.store.prompt.ScratchDirectory;
import baton.store.prompt.SharedStorage;
import baton.store.prompt.TensorLayout;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * Hands KV caches over through a directory: {@code SharedStorageConnector}, which vLLM renamed to {@code ExampleConnector}.
 * A producer stores the KV of a prompt's full blocks under a name made from the prompt's tokens; a consumer loads the longest
 * stored prefix of a prompt within the step that schedules it. Directories are exchangeable with vLLM's
 * ({@link SharedStorage}, {@link EntryNames}), if settings say which layout vLLM's files have.
 *
 * <p>Settings in {@code kv_connector_extra_config}: {@code shared_storage_path}, default {@code /tmp};
 * {@code shared_storage_timeout_seconds}, default 60, the longest that a step waits for a request's load or save;
 * {@code shared_storage_foreign_layout}, by default none, the layout of files without Baton's metadata;
 * {@code shared_storage_write_layout}, default {@code gpu}; {@code shared_storage_foreign_block_size}, by default this
 * instance's block size, that of the instances of vLLM.
 */
public final class SharedStorageConnector implements KvConnector {
    /** Of the engine whose workers are being made. */
    private Optional<StepFileIo> transfers = Optional.empty();

    @Override
    public Set<String> names() {
        return Set.of("SharedStorageConnector", "ExampleConnector");
    }

    @Override
    public Optional<Set<String>> settingNames() {
        return Optional.of(Settings.NAMES);
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        Path root = Settings.root(config.extra());
        if (config.isProducer()) {
            SharedStorage.requireWritable(config.extra().field(Settings.PATH), root);
        }
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new SharedStorageScheduler(context, Settings.of(context));
    }

    /** The first rank's worker comes before the others', which share its transfers. */
    @Override
    public synchronized WorkerConnector worker(ConnectorContext context, Rank rank) {
        if (rank.equals(Rank.FIRST)) {
            transfers = Optional.of(new StepFileIo(context, Settings.of(context)));
        }
        return new SharedStorageWorker(
                transfers.orElseThrow(() -> new IllegalStateException("rank " + rank + " comes before the first")),
                rank);
    }

    /** Through a directory of its own, which does not outlive it. */
    @Override
    public Optional<WarmUpPair> warmUpPair(KvTransferConfig config) throws IOException {
        ScratchDirectory scratch = ScratchDirectory.create();
        return Optional.of(new WarmUpPair(
                new SharedStorageConnector(),
                through(scratch.path(), KvRole.PRODUCER),
                through(scratch.path(), KvRole.CONSUMER),
                "warm-up-%d"::formatted,
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

    /** @param storedBlockSize entries are written for as many blocks of so many tokens as a prompt fills */
    record Settings(Path root, Duration timeout, SharedStorage.Layouts layouts, int storedBlockSize) {
        private static final String PATH = "shared_storage_path";
        private static final String TIMEOUT = "shared_storage_timeout_seconds";
        private static final String FOREIGN_LAYOUT = "shared_storage_foreign_layout";
        private static final String FOREIGN_BLOCK_SIZE = "shared_storage_foreign_block_size";
        private static final String WRITE_LAYOUT = "shared_storage_write_layout";
        private static final Set<String> NAMES =
                Set.of(PATH, TIMEOUT, FOREIGN_LAYOUT, FOREIGN_BLOCK_SIZE, WRITE_LAYOUT);

        static Settings of(ConnectorContext context) {
            JsonFields extra = context.config().extra();
            double seconds = extra.number(TIMEOUT).orElse(60.0);
            if (!(seconds > 0 && seconds <= 86_400)) {
                throw new ConfigException(
                        extra.field(TIMEOUT), "is " + seconds + ", must be more than 0 and at most 86400");
            }
            int own = context.layout().blockSize();
            int stored = extra.integerAtLeast(FOREIGN_BLOCK_SIZE, 1).orElse(own);
            if (stored % own != 0) {
                throw new ConfigException(
                        extra.field(FOREIGN_BLOCK_SIZE),
                        "is " + stored + ", must be a multiple of this instance's --block-size, " + own);
            }
            return new Settings(
                    root(extra),
                    Duration.ofNanos((long) (seconds * 1e9)),
                    new SharedStorage.Layouts(
                            layout(context, FOREIGN_LAYOUT, stored),
                            layout(context, WRITE_LAYOUT, stored).orElse(TensorLayout.GPU)),
                    stored);
        }

        private static Path root(JsonFields extra) {
            return SharedStorage.root(extra.field(PATH), extra.string(PATH).orElse("/tmp"));
        }

        private static Optional<TensorLayout> layout(ConnectorContext context, String setting, int blockSize) {
            JsonFields extra = context.config().extra();
            String field = extra.field(setting);
            return extra.string(setting)
                    .map(name -> TensorLayout.of(
                            field,
                            TensorLayout.Interior.parse(field, name),
                            blockSize,
                            context.modelLayout().headDim(),
                            context.modelLayout().dtype()));
        }
    }
}
