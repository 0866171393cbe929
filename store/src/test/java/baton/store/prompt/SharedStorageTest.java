package baton.store.prompt;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.DType;
import baton.store.FileOperations;
import baton.testkit.RawSafetensors;
import baton.testkit.VirtualTicker;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.FileTime;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class SharedStorageTest {
    private static final String NAME = "a257bb96b9c4f2fce086deecb640d4a8";
    private static final List<String> LAYERS =
            List.of("model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn");
    private static final int TOKENS = 32;
    private static final int KV_HEADS = 3;
    private static final int HEAD_DIM = 8;
    private static final SharedStorage.Format FORMAT =
            new SharedStorage.Format(LAYERS, KV_HEADS, HEAD_DIM, DType.BF16, "feed");
    private static final int LAYER_BYTES = TOKENS * KV_HEADS * 2 * HEAD_DIM * 2;

    private final Arena arena = Arena.ofShared();
    private final VirtualTicker ticker = new VirtualTicker();

    @TempDir
    Path root;

    @AfterEach
    void leavesNoTemporaryFiles() throws IOException {
        arena.close();
        assertThat(names(root)).noneMatch(name -> name.startsWith(".baton"));
    }

    @Test
    void writesFilesThatAnIndependentReaderUnderstands() throws IOException {
        SharedStorage storage = storage(FORMAT);
        assertThat(write(storage, 1)).isTrue();

        assertThat(names(root)).containsExactly(NAME);
        assertThat(names(root.resolve(NAME)))
                .containsExactlyInAnyOrder(
                        "model.layers.0.self_attn.attn.safetensors", "model.layers.1.self_attn.attn.safetensors");
        for (int layer = 0; layer < 2; layer++) {
            RawSafetensors file = RawSafetensors.read(file(layer));
            assertThat(file.header().propertyNames()).containsExactlyInAnyOrder("__metadata__", "kv_cache");
            assertThat(file.header().get("kv_cache").toString())
                    .isEqualTo("{\"dtype\":\"BF16\",\"shape\":[32,3,16],\"data_offsets\":[0,3072]}");
            assertThat(file.header().get("__metadata__").get("baton.model").asString())
                    .isEqualTo("feed");
            assertThat(file.header().get("__metadata__").get("baton.dtype").asString())
                    .isEqualTo("bfloat16");
            assertThat(file.data()).isEqualTo(data(1, layer));
        }
    }

    @Test
    void readsItsOwnEntries() throws IOException {
        SharedStorage storage = storage(FORMAT);
        write(storage, 1);
        SharedStorage.Entry entry = found(storage(FORMAT));

        for (int layer = 0; layer < 2; layer++) {
            assertThat(read(storage, entry, layer)).isEqualTo(data(1, layer));
        }
    }

    @Test
    void layersLargerThanAChunkAreWhole() throws IOException {
        int tokens = 40_000;
        SharedStorage storage = storage(FORMAT);
        byte[] data = new byte[(int) FORMAT.layerBytes(tokens)];
        new Random(5).nextBytes(data);
        try (SharedStorage.Writer writer = storage.write(NAME, tokens)) {
            writer.layer(0, segment(data));
            writer.layer(1, segment(data));
            writer.commit();
        }
        MemorySegment into = arena.allocate(data.length);
        storage.read(((SharedStorage.Lookup.Found) storage.find(NAME, tokens)).entry(), 1, into);

        assertThat(data.length).isGreaterThan(3 << 20);
        assertThat(into.toArray(ValueLayout.JAVA_BYTE)).isEqualTo(data);
    }

    @Test
    void readsVllmsFilesInTheirPresentShape() throws IOException {
        Files.createDirectory(root.resolve(NAME));
        for (int layer = 0; layer < 2; layer++) {
            RawSafetensors.write(file(layer), "kv_cache", "BF16", data(1, layer), TOKENS, KV_HEADS, 2 * HEAD_DIM);
        }
        SharedStorage storage = trusting(FORMAT);

        assertThat(found(storage).proven()).isFalse();
        assertThat(read(storage, found(storage), 1)).isEqualTo(data(1, 1));
    }

    /** Name, shape and type are those of a file that a vLLM on CPUs writes; the interior is another. */
    @Test
    void foreignFilesAreNotReadWithoutALayoutSetting() throws IOException {
        SharedStorage storage = storage(FORMAT);
        write(storage, 1);
        SharedStorage.Entry entry = found(storage);
        assertThat(entry.proven()).isTrue();
        // One layer is enough.
        RawSafetensors.write(file(1), "kv_cache", "BF16", data(1, 1), TOKENS, KV_HEADS, 2 * HEAD_DIM);

        assertThat(storage.find(NAME, TOKENS))
                .isInstanceOfSatisfying(
                        SharedStorage.Lookup.Foreign.class,
                        foreign -> assertThat(foreign.reason())
                                .startsWith(file(1).toString())
                                .contains("has no metadata of Baton's"));
        assertThatThrownBy(() -> read(storage, entry, 1))
                .isInstanceOf(StorageException.class)
                .extracting(e -> ((StorageException) e).fault())
                .isEqualTo(StorageException.Fault.FOREIGN);
        assertThat(write(storage, 2)).as("it stays").isFalse();
        assertThat(found(trusting(FORMAT)).proven()).isFalse();
    }

    @Test
    void aFilesMetadataTakePrecedenceOverTheForeignLayout() throws IOException {
        write(storage(FORMAT), 1);
        SharedStorage.Format model = new SharedStorage.Format(LAYERS, KV_HEADS, HEAD_DIM, DType.BF16, "f00d");
        assertThat(trusting(model).find(NAME, TOKENS)).isInstanceOf(SharedStorage.Lookup.Incompatible.class);

        for (String missing : List.of("baton.model", "baton.dtype", "baton.layout", "baton.crc32c")) {
            byte[] bytes = Files.readAllBytes(file(0));
            String text = new String(bytes, StandardCharsets.ISO_8859_1);
            assertThat(text).contains(missing);
            Files.write(
                    file(0),
                    text.replace(missing, "baton.?" + missing.substring(7)).getBytes(StandardCharsets.ISO_8859_1));
            assertThat(trusting(FORMAT).find(NAME, TOKENS)).as(missing).isInstanceOf(SharedStorage.Lookup.Broken.class);
            Files.write(file(0), bytes);
        }
        assertThat(found(trusting(FORMAT)).proven()).isTrue();
    }

    @Test
    void readsVllmsFilesInTheirEarlierShape() throws IOException {
        Files.createDirectory(root.resolve(NAME));
        for (int layer = 0; layer < 2; layer++) {
            byte[] packed = data(1, layer);
            byte[] split = new byte[packed.length];
            int vector = HEAD_DIM * 2;
            for (int token = 0; token < TOKENS; token++) {
                for (int head = 0; head < KV_HEADS; head++) {
                    int row = token * KV_HEADS + head;
                    System.arraycopy(packed, row * 2 * vector, split, row * vector, vector);
                    System.arraycopy(packed, (row * 2 + 1) * vector, split, (TOKENS * KV_HEADS + row) * vector, vector);
                }
            }
            RawSafetensors.write(file(layer), "kv_cache", "BF16", split, 2, TOKENS, KV_HEADS, HEAD_DIM);
        }
        SharedStorage storage = trusting(FORMAT);

        assertThat(read(storage, found(storage), 0)).isEqualTo(data(1, 0));
        assertThat(read(storage, found(storage), 1)).isEqualTo(data(1, 1));
    }

    @Test
    void anEntryIsAbsentUntilItIsComplete() throws IOException {
        SharedStorage storage = storage(FORMAT);
        try (SharedStorage.Writer writer = storage.write(NAME, TOKENS)) {
            writer.layer(0, segment(data(1, 0)));
            assertThat(storage.find(NAME, TOKENS)).isInstanceOf(SharedStorage.Lookup.Absent.class);
            writer.layer(1, segment(data(1, 1)));
            assertThat(storage.find(NAME, TOKENS)).isInstanceOf(SharedStorage.Lookup.Absent.class);
            assertThat(names(root)).hasSize(1).noneMatch(NAME::equals);
        }
        assertThat(names(root)).isEmpty();
    }

    @Test
    void theFirstCompleteEntryStays() throws IOException {
        SharedStorage storage = storage(FORMAT);

        assertThat(write(storage, 1)).isTrue();
        assertThat(write(storage, 2)).isFalse();
        assertThat(read(storage, found(storage), 0)).isEqualTo(data(1, 0));
    }

    @Test
    void brokenEntriesAreReplaced() throws IOException {
        SharedStorage storage = trusting(FORMAT);
        List<Breakage> breakages = List.of(
                entry -> Files.createDirectory(entry),
                entry -> {
                    Files.createDirectories(entry.resolve("sub"));
                    Files.writeString(entry.resolve("sub").resolve("file"), "x");
                },
                entry -> Files.writeString(entry, "a file"),
                entry -> Files.createSymbolicLink(entry, root.resolve("elsewhere")),
                entry -> {
                    Files.createDirectory(entry);
                    RawSafetensors.write(file(0), "kv_cache", "BF16", data(3, 0), TOKENS, KV_HEADS, 2 * HEAD_DIM);
                });
        for (Breakage breakage : breakages) {
            breakage.apply(root.resolve(NAME));
            assertThat(storage.find(NAME, TOKENS)).isNotInstanceOf(SharedStorage.Lookup.Found.class);

            assertThat(write(storage, 1)).isTrue();
            assertThat(read(storage, found(storage), 1)).isEqualTo(data(1, 1));
            delete(root.resolve(NAME));
        }
    }

    @Test
    void aDistrustedEntryIsBrokenUntilReplacedOrForgotten() throws IOException {
        SharedStorage storage = storage(FORMAT);
        write(storage, 1);
        storage.distrust(found(storage));
        assertThat(storage.find(NAME, TOKENS)).isInstanceOf(SharedStorage.Lookup.Broken.class);

        assertThat(write(storage, 2)).isTrue();
        assertThat(read(storage, found(storage), 0)).isEqualTo(data(2, 0));

        storage.distrust(found(storage));
        ticker.advance(Duration.ofSeconds(61));
        assertThat(found(storage).name()).isEqualTo(NAME);
    }

    @Test
    void entriesOfAnotherModelAreIncompatibleAndStay() throws IOException {
        write(storage(FORMAT), 1);
        SharedStorage.Format fp16 = new SharedStorage.Format(LAYERS, KV_HEADS, HEAD_DIM, DType.F16, "feed");
        SharedStorage.Format model = new SharedStorage.Format(LAYERS, KV_HEADS, HEAD_DIM, DType.BF16, "f00d");
        SharedStorage.Format heads = new SharedStorage.Format(LAYERS, 6, 4, DType.BF16, "feed");

        assertIncompatible(fp16, "dtype is BF16, this instance's is F16");
        assertIncompatible(model, "baton.model is feed, this instance's is f00d");
        assertIncompatible(heads, "shape is [32, 3, 16], expected [32, 6, 8]");
        assertThat(write(storage(model), 2)).isFalse();
        assertThat(read(storage(FORMAT), found(storage(FORMAT)), 0)).isEqualTo(data(1, 0));
    }

    @Test
    void hostileFilesAreBroken() throws IOException, InterruptedException {
        byte[] data = data(1, 1);
        List<Breakage> breakages = new ArrayList<>(List.of(
                file -> Files.delete(file),
                file -> Files.writeString(file, ""),
                file -> Files.writeString(file, "short"),
                file -> Files.write(file, new byte[] {-1, -1, -1, -1, -1, -1, -1, 127, 0}),
                file -> RawSafetensors.writeHeader(file, "{" + " ".repeat(100_000) + "}", data),
                file -> RawSafetensors.writeHeader(file, "{]", data),
                file -> RawSafetensors.writeHeader(file, "[1]", data),
                file -> RawSafetensors.writeHeader(file, "{}", data),
                file -> RawSafetensors.write(file, "other", "BF16", data, TOKENS, KV_HEADS, 2 * HEAD_DIM),
                file -> RawSafetensors.write(file, "kv_cache", "BF16", new byte[96], 1, KV_HEADS, 2 * HEAD_DIM),
                file -> RawSafetensors.writeHeader(
                        file,
                        "{\"kv_cache\":{\"dtype\":\"BF16\",\"shape\":[32,3,16],\"data_offsets\":[0,3072]}}",
                        Arrays.copyOf(data, data.length - 1)),
                file -> RawSafetensors.writeHeader(
                        file,
                        "{\"kv_cache\":{\"dtype\":\"BF16\",\"shape\":[9223372036854775807,3,16],\"data_offsets\":[0,3072]}}",
                        data),
                file -> {
                    Files.move(file, root.resolve("outside"));
                    Files.createSymbolicLink(file, root.resolve("outside"));
                },
                file -> {
                    Files.delete(file);
                    Files.createDirectory(file);
                }));
        if (run("mkfifo", root.resolve("pipe").toString()) == 0) {
            breakages.add(file -> Files.move(root.resolve("pipe"), file, StandardCopyOption.REPLACE_EXISTING));
        }
        SharedStorage storage = storage(FORMAT);
        for (Breakage breakage : breakages) {
            write(storage, 1);
            SharedStorage.Entry entry = found(storage);
            breakage.apply(file(1));

            assertThat(storage.find(NAME, TOKENS)).isInstanceOf(SharedStorage.Lookup.Broken.class);
            assertThatThrownBy(() -> read(storage, entry, 1))
                    .isInstanceOf(StorageException.class)
                    .hasMessageContaining(file(1).toString())
                    .extracting(e -> ((StorageException) e).fault())
                    .isIn(StorageException.Fault.MISSING, StorageException.Fault.DAMAGED);
            assertThat(read(storage, entry, 0)).isEqualTo(data(1, 0));
            delete(root.resolve(NAME));
            Files.deleteIfExists(root.resolve("outside"));
        }
    }

    @ParameterizedTest
    @ValueSource(longs = {1, 2, 3})
    void aFlippedByteIsNeverReadAsGood(long seed) throws IOException {
        Random random = new Random(seed);
        SharedStorage storage = storage(FORMAT);
        write(storage, 1);
        SharedStorage.Entry entry = found(storage);
        byte[] good = Files.readAllBytes(file(0));
        int rejected = 0;
        for (int i = 0; i < 300; i++) {
            byte[] bad = good.clone();
            // Half of them in the header, which is the smaller part.
            int at = random.nextInt(i % 2 == 0 ? good.length - LAYER_BYTES : good.length);
            bad[at] ^= (byte) (1 + random.nextInt(255));
            Files.write(file(0), bad);
            try {
                // Surviving damage, e.g. of another metadata key, must not have touched the data.
                assertThat(read(storage, entry, 0))
                        .as("byte %d, seed %d", at, seed)
                        .isEqualTo(data(1, 0));
            } catch (StorageException e) {
                rejected++;
            }
        }
        assertThat(rejected).isGreaterThan(200);
    }

    @Test
    void aFileTruncatedAnywhereIsAnError() throws IOException {
        SharedStorage storage = storage(FORMAT);
        write(storage, 1);
        SharedStorage.Entry entry = found(storage);
        byte[] good = Files.readAllBytes(file(0));
        for (int length = 0; length < good.length; length += 13) {
            Files.write(file(0), Arrays.copyOf(good, length));
            assertThatThrownBy(() -> read(storage, entry, 0))
                    .isInstanceOf(StorageException.class)
                    .extracting(e -> ((StorageException) e).fault())
                    .isEqualTo(StorageException.Fault.DAMAGED);
        }
    }

    @Test
    void manyWritersOfOneEntryLeaveOneWholeEntry() throws Exception {
        int writers = 8;
        for (int round = 0; round < 20; round++) {
            if (round % 2 == 1) {
                Files.createDirectories(root.resolve(NAME).resolve("broken"));
            }
            CyclicBarrier start = new CyclicBarrier(writers);
            List<Callable<Boolean>> tasks = new ArrayList<>();
            for (int i = 0; i < writers; i++) {
                int value = i;
                tasks.add(() -> {
                    SharedStorage storage = storage(FORMAT);
                    try (SharedStorage.Writer writer = storage.write(NAME, TOKENS)) {
                        writer.layer(0, segment(data(value, 0)));
                        writer.layer(1, segment(data(value, 1)));
                        start.await(30, TimeUnit.SECONDS);
                        return writer.commit();
                    }
                });
            }
            try (ExecutorService executor = Executors.newVirtualThreadPerTaskExecutor()) {
                List<Integer> winners = new ArrayList<>();
                List<Future<Boolean>> results = executor.invokeAll(tasks);
                for (int i = 0; i < writers; i++) {
                    if (results.get(i).get()) {
                        winners.add(i);
                    }
                }
                assertThat(winners).isNotEmpty();
                SharedStorage storage = storage(FORMAT);
                SharedStorage.Entry entry = found(storage);
                int winner = read(storage, entry, 0)[0];
                assertThat(winners).contains(winner);
                assertThat(read(storage, entry, 0)).isEqualTo(data(winner, 0));
                assertThat(read(storage, entry, 1)).isEqualTo(data(winner, 1));
            }
            assertThat(names(root)).containsExactly(NAME);
            delete(root.resolve(NAME));
        }
    }

    @Test
    void abandonedTemporaryDirectoriesAreRemovedWhenOld() throws IOException {
        SharedStorage storage = storage(FORMAT);
        write(storage, 1);
        Path old = Files.createDirectory(root.resolve(".baton-tmp-old"));
        Files.writeString(old.resolve("layer.safetensors"), "x");
        Path linked = Files.createDirectory(root.resolve("linked"));
        Files.writeString(linked.resolve("precious"), "x");
        Files.createSymbolicLink(old.resolve("link"), linked);
        Path young = Files.createDirectory(root.resolve(".baton-tmp-young"));
        Instant now = Instant.now();
        Files.setLastModifiedTime(old, FileTime.from(now.minus(Duration.ofMinutes(61))));
        Files.setLastModifiedTime(root.resolve(NAME), FileTime.from(now.minus(Duration.ofDays(61))));

        assertThat(write(storage, 2)).isFalse();
        assertThat(old).as("looked for once an hour").exists();
        ticker.advance(Duration.ofHours(1));
        assertThat(write(storage, 2)).isFalse();

        assertThat(names(root)).containsExactlyInAnyOrder(NAME, ".baton-tmp-young", "linked");
        assertThat(linked.resolve("precious")).exists();
        delete(young);
        delete(linked);
    }

    @Test
    void aFullDiskIsAnErrorThatLeavesNothingBehind() throws Exception {
        Path small = Files.createDirectory(root.resolve("small"));
        assumeTrue(
                run("mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", small.toString()) == 0,
                "mounting a tmpfs takes root and CAP_SYS_ADMIN");
        try {
            SharedStorage storage = new SharedStorage(small, FORMAT, ticker);
            int tokens = 256;
            byte[] data = new byte[(int) FORMAT.layerBytes(tokens)];
            for (int attempt = 0; attempt < 2; attempt++) {
                try (SharedStorage.Writer writer = storage.write(NAME, tokens)) {
                    assertThatThrownBy(() -> writer.layer(0, segment(data)))
                            .isInstanceOf(StorageException.class)
                            .hasMessageContaining("No space left on device")
                            .extracting(e -> ((StorageException) e).fault())
                            .isEqualTo(StorageException.Fault.NO_SPACE);
                    assertThat(names(small)).isEmpty();
                }
            }
            try (SharedStorage.Writer writer = storage.write(NAME, TOKENS)) {
                writer.layer(0, segment(data(1, 0)));
                writer.layer(1, segment(data(1, 1)));
                assertThat(writer.commit()).isTrue();
            }
        } finally {
            assertThat(run("umount", small.toString())).isZero();
        }
    }

    @Test
    void aReadOnlyFileSystemIsDenied() throws Exception {
        Path readOnly = Files.createDirectory(root.resolve("read-only"));
        assumeTrue(
                run("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", readOnly.toString()) == 0,
                "mounting a tmpfs takes root and CAP_SYS_ADMIN");
        try {
            SharedStorage storage = new SharedStorage(readOnly, FORMAT, ticker);
            assertThatThrownBy(() -> storage.write(NAME, TOKENS))
                    .isInstanceOf(StorageException.class)
                    .extracting(e -> ((StorageException) e).fault())
                    .isEqualTo(StorageException.Fault.DENIED);
        } finally {
            assertThat(run("umount", readOnly.toString())).isZero();
        }
    }

    private interface Breakage {
        void apply(Path path) throws IOException;
    }

    private SharedStorage storage(SharedStorage.Format format) {
        return new SharedStorage(root, format, ticker);
    }

    /** A storage that takes foreign files for those of vLLM's GPU backends. */
    private SharedStorage trusting(SharedStorage.Format format) {
        return new SharedStorage(
                root,
                format,
                new SharedStorage.Layouts(Optional.of(TensorLayout.GPU), TensorLayout.GPU),
                ticker,
                FileOperations.SYSTEM);
    }

    private Path file(int layer) {
        return root.resolve(NAME).resolve(LAYERS.get(layer) + ".safetensors");
    }

    private boolean write(SharedStorage storage, int value) throws IOException {
        try (SharedStorage.Writer writer = storage.write(NAME, TOKENS)) {
            writer.layer(0, segment(data(value, 0)));
            writer.layer(1, segment(data(value, 1)));
            return writer.commit();
        }
    }

    private static SharedStorage.Entry found(SharedStorage storage) {
        SharedStorage.Lookup lookup = storage.find(NAME, TOKENS);
        assertThat(lookup).isInstanceOf(SharedStorage.Lookup.Found.class);
        return ((SharedStorage.Lookup.Found) lookup).entry();
    }

    private void assertIncompatible(SharedStorage.Format format, String reason) {
        assertThat(storage(format).find(NAME, TOKENS))
                .isInstanceOfSatisfying(
                        SharedStorage.Lookup.Incompatible.class,
                        incompatible -> assertThat(incompatible.reason()).endsWith(reason));
    }

    private byte[] read(SharedStorage storage, SharedStorage.Entry entry, int layer) throws IOException {
        MemorySegment into = arena.allocate(LAYER_BYTES);
        storage.read(entry, layer, into);
        return into.toArray(ValueLayout.JAVA_BYTE);
    }

    /** Random bytes that begin with {@code value}. */
    private static byte[] data(int value, int layer) {
        byte[] data = new byte[LAYER_BYTES];
        new Random(31L * value + layer).nextBytes(data);
        data[0] = (byte) value;
        return data;
    }

    private MemorySegment segment(byte[] bytes) {
        return arena.allocate(bytes.length).copyFrom(MemorySegment.ofArray(bytes));
    }

    private static List<String> names(Path directory) throws IOException {
        try (Stream<Path> list = Files.list(directory)) {
            return list.map(path -> path.getFileName().toString()).toList();
        }
    }

    private static void delete(Path path) throws IOException {
        try (Stream<Path> tree = Files.walk(path)) {
            for (Path each : tree.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(each);
            }
        }
    }

    private static int run(String... command) throws IOException, InterruptedException {
        try {
            Process process = new ProcessBuilder(command)
                    .redirectErrorStream(true)
                    .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                    .start();
            return process.waitFor();
        } catch (IOException e) {
            return -1;
        }
    }
}
