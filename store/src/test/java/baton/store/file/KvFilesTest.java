package baton.store.file;

import static baton.store.file.StoredValues.SMALL;
import static baton.store.file.StoredValues.await;
import static baton.store.file.StoredValues.counted;
import static baton.store.file.StoredValues.get;
import static baton.store.file.StoredValues.key;
import static baton.store.file.StoredValues.keys;
import static baton.store.file.StoredValues.put;
import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.connector.Measurement;
import baton.store.BlockStore;
import baton.store.FileOperations;
import baton.store.StoreEvent;
import baton.store.StoreFormat;
import baton.store.prompt.SharedStorage;
import baton.testkit.VirtualTicker;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributeView;
import java.nio.file.attribute.FileTime;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The files that are removed from a directory, and those that stay. */
class KvFilesTest {
    private static final long FILE_BYTES = FileHeader.fileBytes(SMALL.valueBytes());

    private final Instant now = Instant.now();
    private final VirtualTicker ticker = new VirtualTicker();

    @TempDir
    Path root;

    private BlockStore open(FileStoreSettings.Limits limits) {
        return FileBlockStore.open(
                new FileStoreSettings("root", root, 2, 2, 64, FileStoreSettings.IoMode.BUFFERED, false, limits),
                SMALL,
                ticker);
    }

    private static FileStoreSettings.Limits most(long bytes) {
        return new FileStoreSettings.Limits(OptionalLong.of(bytes), Optional.empty());
    }

    private static FileStoreSettings.Limits age(Duration most) {
        return new FileStoreSettings.Limits(OptionalLong.empty(), Optional.of(most));
    }

    private Path file(int number) {
        return FsPathLayout.of(SMALL).value(root, 0, key(number).toString(), 0);
    }

    private void unusedFor(Path path, Duration time) throws IOException {
        FileTime at = FileTime.from(now.minus(time));
        Files.getFileAttributeView(path, BasicFileAttributeView.class, LinkOption.NOFOLLOW_LINKS)
                .setTimes(at, at, null);
    }

    private void putUnused(int first, int count) throws IOException {
        try (BlockStore store = open(FileStoreSettings.Limits.NONE)) {
            assertThat(put(store, keys(first, count))).isEqualTo(count);
        }
        for (int i = first; i < first + count; i++) {
            // The first ones are the oldest.
            unusedFor(file(i), Duration.ofDays(100 - i));
        }
    }

    private List<Path> collect(FileStoreSettings.Limits limits, boolean dryRun) throws IOException {
        List<Path> removed = new ArrayList<>();
        KvFiles.Collected result = new KvFiles(root, FileOperations.SYSTEM, KvFiles.Scope.ALL)
                .collect(new KvFiles.Request(limits, 1, dryRun, now), file -> removed.add(file.path()), () -> false);
        assertThat(result.removed()).isEqualTo(removed.size());
        return removed;
    }

    private List<Path> all() throws IOException {
        try (Stream<Path> files = Files.walk(root)) {
            return files.toList();
        }
    }

    @Test
    void theLeastRecentlyUsedFilesAreRemovedUntilTheRestFits() throws IOException {
        putUnused(1, 10);
        assertThat(collect(most(10 * FILE_BYTES), false)).isEmpty();
        assertThat(collect(most(7 * FILE_BYTES + 1), false)).containsExactlyInAnyOrder(file(1), file(2), file(3));
        try (BlockStore store = open(FileStoreSettings.Limits.NONE)) {
            assertThat(get(store, keys(1, 10))).isEqualTo(keys(4, 7));
        }
    }

    @Test
    void filesUnusedForTooLongAreRemoved() throws IOException {
        putUnused(1, 10);
        assertThat(collect(age(Duration.ofDays(93).plusHours(1)), false))
                .containsExactlyInAnyOrder(file(1), file(2), file(3), file(4), file(5), file(6));
    }

    @Test
    void aDryRunTellsTheSameAndRemovesNothing() throws IOException {
        putUnused(1, 10);
        List<Path> before = all();
        FileStoreSettings.Limits limits =
                new FileStoreSettings.Limits(OptionalLong.of(2 * FILE_BYTES), Optional.of(Duration.ofDays(95)));
        List<Path> told = collect(limits, true);
        assertThat(all()).isEqualTo(before);
        assertThat(collect(limits, false))
                .containsExactlyInAnyOrderElementsOf(told)
                .hasSize(8);
    }

    @Test
    void readingCountsAsUse() throws IOException {
        putUnused(1, 3);
        try (BlockStore store = open(FileStoreSettings.Limits.NONE)) {
            get(store, keys(1, 1));
            assertThat(Files.getLastModifiedTime(file(1)).toInstant()).isAfter(now.minusSeconds(60));
            // Not at each read.
            unusedFor(file(1), Duration.ofDays(1));
            get(store, keys(1, 1));
            assertThat(Files.getLastModifiedTime(file(1)).toInstant()).isBefore(now.minusSeconds(60));
            ticker.advance(FileIndex.TOUCH_INTERVAL);
            get(store, keys(1, 1));
        }
        assertThat(collect(most(FILE_BYTES), false)).containsExactlyInAnyOrder(file(2), file(3));
    }

    @Test
    void onlyKvFilesAreRemoved() throws IOException {
        putUnused(1, 2);
        Path group = file(1).resolveSibling("x").normalize();
        List<Path> kept = List.of(
                root.resolve("notes.txt"),
                root.resolve("model/weights.safetensors"),
                root.resolve("0".repeat(32) + "/notes.txt"),
                // Not of KV: has no tensor of that name.
                root.resolve("1".repeat(32) + "/model.safetensors"),
                // No directory of values: its config.json is not there, or another's.
                root.resolve("a_0123456789ab_r0/012/34_g0/" + "01234".repeat(12) + "0123.bin"),
                group.resolveSibling("notes.bin"),
                file(1).resolveSibling("readme"));
        for (Path file : kept) {
            Files.createDirectories(file.resolveSibling("."));
            Files.write(file, new byte[5000]);
            unusedFor(file, Duration.ofDays(1000));
        }
        Path link = file(2).resolveSibling("f".repeat(64) + ".bin");
        Files.createSymbolicLink(link, kept.getFirst());
        assertThat(collect(most(1), false)).containsExactlyInAnyOrder(file(1), file(2));
        assertThat(kept).allMatch(Files::exists);
        assertThat(link).isSymbolicLink();
    }

    /** As vLLM's FileMapper lays them out; the digest is that of its test. */
    @Test
    void valuesOfVllmAreRemovedByTheCommandAndNotByAStore() throws IOException {
        Map<String, Object> fields = Map.of("model_name", "Qwen/Qwen3", "inference_engine", "vllm", "tp_size", 1);
        FsPathLayout vllm = FsPathLayout.ofFields(fields);
        Path value = vllm.value(root, 0, "ab".repeat(32), 1);
        Files.createDirectories(value.resolveSibling("."));
        Files.write(value, new byte[8192]);
        unusedFor(value, Duration.ofDays(8));
        Files.createDirectories(root.resolve(vllm.directory()));
        Files.writeString(root.resolve(vllm.directory(), "config.json"), vllm.prettyJson());
        putUnused(1, 1);
        try (BlockStore store = open(age(Duration.ofDays(7)))) {
            await("the collection", () -> !Files.exists(file(1)));
            assertThat(value).exists();
        }
        assertThat(collect(age(Duration.ofDays(7)), false)).containsExactly(value);
    }

    private Path entry(char digit, Duration unused) throws IOException {
        SharedStorage.Format format = new SharedStorage.Format(List.of("layer.0", "layer.1"), 2, 8, DType.BF16, "a1");
        SharedStorage storage = new SharedStorage(root, format, ticker);
        String name = Character.toString(digit).repeat(32);
        try (Arena arena = Arena.ofConfined();
                SharedStorage.Writer writer = storage.write(name, 16)) {
            for (int layer = 0; layer < 2; layer++) {
                writer.layer(layer, arena.allocate(format.layerBytes(16), 64));
            }
            assertThat(writer.commit()).isTrue();
        }
        Path directory = root.resolve(name);
        try (Stream<Path> files = Files.list(directory)) {
            for (Path file : files.toList()) {
                unusedFor(file, unused);
            }
        }
        unusedFor(directory, unused);
        return directory;
    }

    @Test
    void promptsEntriesAreRemovedWholeButNotWhileTheyAreWritten() throws IOException {
        Path old = entry('a', Duration.ofDays(9));
        Path recent = entry('b', Duration.ofDays(2));
        // Its first file is a minute old: vLLM writes the next one in place.
        Path written = entry('c', Duration.ofDays(9));
        unusedFor(written.resolve("layer.0.safetensors"), Duration.ofMinutes(1));
        assertThat(collect(age(Duration.ofDays(7)), false)).containsExactly(old);
        assertThat(old).doesNotExist();
        assertThat(collect(most(1), false)).containsExactly(recent);
        assertThat(written).isDirectory();
        assertThat(all()).noneMatch(path -> path.getFileName().toString().startsWith(".baton"));
    }

    @Test
    void abandonedTemporaryFilesAreRemoved() throws IOException {
        putUnused(1, 1);
        Path old = file(1).resolveSibling(ValueFiles.temporary(key(2) + ".bin"));
        Path recent = file(1).resolveSibling(ValueFiles.temporary(key(3) + ".bin"));
        Path oldDirectory = root.resolve(".baton-tmp-1");
        Files.createDirectory(oldDirectory);
        for (Path file : List.of(old, recent, oldDirectory.resolve("layer.safetensors"))) {
            Files.write(file, new byte[10]);
            unusedFor(file, Duration.ofHours(2));
        }
        unusedFor(recent, Duration.ofMinutes(50));
        unusedFor(oldDirectory, Duration.ofHours(2));
        assertThat(collect(FileStoreSettings.Limits.NONE, false)).containsExactlyInAnyOrder(old, oldDirectory);
        unusedFor(recent, Duration.ofMinutes(70));
        try (BlockStore store = open(FileStoreSettings.Limits.NONE)) {
            await("the index", () -> !Files.exists(recent));
            assertThat(store.name()).isEqualTo("fs");
        }
    }

    @Test
    void aStoreCollectsWhenItHasWrittenTooMuch() throws IOException {
        putUnused(1, 10);
        try (BlockStore store = open(most(10 * FILE_BYTES))) {
            assertThat(get(store, keys(1, 1))).hasSize(1);
            await("the index", () -> ((FileBlockStore) store).indexed() == 10);
            store.takeEvents();
            assertThat(put(store, keys(11, 1))).isEqualTo(1);
            List<StoreEvent> events = new ArrayList<>();
            List<Measurement> measurements = new ArrayList<>();
            await("the collection", () -> {
                // One that goes on from the start may have missed the new file, and then another is due in 10 s.
                ticker.advance(Duration.ofSeconds(10));
                measurements.addAll(store.takeMeasurements());
                return counted(measurements, "baton:kv_file_collected") == 2;
            });
            await("the events", () -> {
                events.addAll(store.takeEvents());
                return keysOf(events, false).size() == 2;
            });
            assertThat(events.getFirst().stored()).isTrue();
            assertThat(keysOf(events, true)).isEqualTo(keys(11, 1));
            // The first one was read.
            assertThat(keysOf(events, false)).containsExactlyInAnyOrderElementsOf(keys(2, 2));
            assertThat(get(store, keys(1, 11))).hasSize(9);
        }
    }

    private static List<BlockHash> keysOf(List<StoreEvent> events, boolean stored) {
        return events.stream()
                .filter(event -> event.stored() == stored)
                .flatMap(event -> event.keys().stream())
                .toList();
    }

    @Test
    void aStoreCollectsTheFilesOfFormatsThatAreNotUsedAnyMore() throws IOException {
        putUnused(1, 3);
        StoreFormat other = StoredValues.format(2);
        FileStoreSettings settings = new FileStoreSettings(
                "root", root, 2, 2, 64, FileStoreSettings.IoMode.BUFFERED, false, age(Duration.ofDays(1)));
        try (BlockStore store = FileBlockStore.open(settings, other, ticker)) {
            await("the collection", () -> !Files.exists(file(1)) && !Files.exists(file(2)) && !Files.exists(file(3)));
            assertThat(put(store, keys(1, 1))).isEqualTo(1);
        }
    }

    @Test
    void aStoreKnowsTheFilesThatAreThereAtItsStart() throws IOException {
        putUnused(1, 5);
        try (FileBlockStore store = FileBlockStore.open(FileStoreSettings.of("root", root), SMALL, ticker)) {
            await("the index", () -> store.indexed() == 5);
            assertThat(put(store, keys(1, 5))).isEqualTo(5);
            assertThat(counted(store.takeMeasurements(), "baton:kv_file_written_bytes"))
                    .isZero();
        }
    }
}
