package com.example.kv;

import baton.kv.BlockHash;
import baton.kv.ConfigException;
import baton.kv.KvCache;
import baton.kv.KvTransferConfig;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.zip.CRC32C;

/**
 * Keeps each full block of a prompt in a file of a directory, under the block's hash, and loads it for prompts that begin in the same way.
 * A file is the block as it lies in the pool, and 8 bytes with its CRC32C. For a local directory: files are used within steps.
 */
public final class DirectoryConnector implements KvConnector {
    private static final String DIRECTORY = "directory";

    @Override
    public Set<String> names() {
        return Set.of("DirectoryConnector");
    }

    @Override
    public Optional<Set<String>> settingNames() {
        return Optional.of(Set.of(DIRECTORY));
    }

    /** Refuses what cannot work before the model is loaded. */
    @Override
    public void check(KvTransferConfig config, int ranks) {
        if (ranks > 1) {
            throw new ConfigException("kv_connector", "DirectoryConnector is for one rank, this engine has " + ranks);
        }
        try {
            Files.createDirectories(root(config));
        } catch (IOException e) {
            throw new ConfigException(config.extra().field(DIRECTORY), "cannot be made: " + e, e);
        }
    }

    private static Path root(KvTransferConfig config) {
        return Path.of(config.extra().string(DIRECTORY).orElse("/tmp/kv-blocks"));
    }

    /** Blocks of other models, or that lie otherwise, are elsewhere. The hash says nothing of either. */
    private static Path directory(ConnectorContext context) {
        String layout = context.layout().describe().replaceAll("[^A-Za-z0-9]+", "-");
        return root(context.config()).resolve(context.model().digest() + "-" + layout);
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return new Scheduler(context);
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        return new Worker(directory(context));
    }

    /** A block of the pool and its file's name. */
    private record Entry(String requestId, String name, int block) {}

    /** What the worker does in one step. */
    private record Plan(List<Entry> loads, List<Entry> saves) implements ConnectorMetadata {}

    /** Decides. */
    private static final class Scheduler implements SchedulerConnector {
        private final Path directory;
        private final int blockSize;
        private final boolean saves;
        private final boolean loads;
        private final List<Entry> toLoad = new ArrayList<>();

        private Scheduler(ConnectorContext context) {
            directory = directory(context);
            blockSize = context.layout().blockSize();
            saves = context.config().isProducer();
            loads = context.config().isConsumer();
        }

        /** As many blocks as there are files for; the prompt's last token is always computed. Changes nothing. */
        @Override
        public KvMatch match(KvRequest request, int computedTokens) {
            int first = computedTokens / blockSize;
            int end = first;
            int most = loads ? (request.promptLength() - 1) / blockSize : 0;
            List<BlockHash> hashes = request.blockHashes();
            while (end < most && Files.exists(directory.resolve(hashes.get(end).toString()))) {
                end++;
            }
            return end > first ? new KvMatch.Tokens((end - first) * blockSize, false) : new KvMatch.None();
        }

        @Override
        public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
            int first = computedTokens / blockSize;
            toLoad.addAll(entries(request, blockTable, first, first + externalTokens / blockSize));
        }

        /** Saves the blocks that the step completes. */
        @Override
        public ConnectorMetadata buildMetadata(ScheduledStep step) {
            List<Entry> toSave = new ArrayList<>();
            for (ScheduledRequest each : step.requests()) {
                int end = Math.min(
                        each.computedTokens() + each.scheduledTokens(),
                        each.request().promptLength());
                if (saves) {
                    toSave.addAll(entries(
                            each.request(), each.blockTable(), each.computedTokens() / blockSize, end / blockSize));
                }
            }
            Plan plan = new Plan(List.copyOf(toLoad), toSave);
            toLoad.clear();
            return plan;
        }

        private static List<Entry> entries(KvRequest request, int[] blockTable, int from, int to) {
            List<Entry> entries = new ArrayList<>();
            List<BlockHash> hashes = request.blockHashes();
            for (int i = from; i < to; i++) {
                entries.add(new Entry(request.id(), hashes.get(i).toString(), blockTable[i]));
            }
            return entries;
        }

        @Override
        public void close() {}
    }

    /** Moves bytes. It never throws because of a file: what cannot be loaded is reported, what cannot be saved is left out. */
    private static final class Worker implements WorkerConnector {
        private final Path directory;
        private final Set<Integer> invalid = new HashSet<>();
        private final Set<String> discarded = new HashSet<>();
        private final List<Measurement> measurements = new ArrayList<>();
        private KvCache cache;
        private Plan plan = new Plan(List.of(), List.of());

        private Worker(Path directory) {
            this.directory = directory;
        }

        @Override
        public void register(KvCache pool) {
            cache = pool;
            try {
                Files.createDirectories(directory);
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        @Override
        public void startLoad(ConnectorMetadata metadata) {
            plan = (Plan) metadata;
            discarded.clear();
            for (Entry entry : plan.loads()) {
                try {
                    MemorySegment file = MemorySegment.ofArray(Files.readAllBytes(directory.resolve(entry.name())));
                    MemorySegment block = cache.block(entry.block());
                    if (file.byteSize() != block.byteSize() + Long.BYTES
                            || file.get(ValueLayout.JAVA_LONG_UNALIGNED, block.byteSize())
                                    != checksum(file.asSlice(0, block.byteSize()))) {
                        // It would fail every request with this prefix; without it the block is computed and saved anew.
                        Files.deleteIfExists(directory.resolve(entry.name()));
                        throw new IOException(entry.name() + " is damaged");
                    }
                    block.copyFrom(file.asSlice(0, block.byteSize()));
                    measurements.add(Measurement.count("directory_connector:loaded_blocks", 1));
                } catch (IOException e) {
                    invalid.add(entry.block());
                }
            }
        }

        /** Their keys and values are wrong. */
        @Override
        public void discardSaves(Set<String> requestIds) {
            discarded.addAll(requestIds);
        }

        /** All layers are computed. What was computed from blocks that could not be loaded is not worth saving. */
        @Override
        public void waitForSave() {
            for (Entry entry : invalid.isEmpty() ? plan.saves() : List.<Entry>of()) {
                Path file = directory.resolve(entry.name());
                Path part = directory.resolve(UUID.randomUUID() + ".part");
                try {
                    if (!discarded.contains(entry.requestId()) && !Files.exists(file)) {
                        byte[] bytes = cache.block(entry.block()).toArray(ValueLayout.JAVA_BYTE);
                        ByteBuffer out = ByteBuffer.allocate(bytes.length + Long.BYTES)
                                .order(ByteOrder.nativeOrder())
                                .put(bytes)
                                .putLong(checksum(MemorySegment.ofArray(bytes)));
                        Files.write(part, out.array());
                        // Readers see a whole file or none.
                        Files.move(part, file, StandardCopyOption.ATOMIC_MOVE);
                    }
                } catch (IOException e) {
                    measurements.add(Measurement.count("directory_connector:save_failures", 1));
                }
            }
        }

        private static long checksum(MemorySegment bytes) {
            CRC32C checksum = new CRC32C();
            checksum.update(bytes.asByteBuffer());
            return checksum.getValue();
        }

        @Override
        public WorkerReport report(Set<String> finished) {
            WorkerReport report = new WorkerReport(Set.of(), Set.of(), invalid, measurements);
            invalid.clear();
            measurements.clear();
            return report;
        }

        @Override
        public void close() {}
    }
}
