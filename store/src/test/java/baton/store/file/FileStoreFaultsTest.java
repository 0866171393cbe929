package baton.store.file;

import static baton.store.file.StoredValues.SMALL;
import static baton.store.file.StoredValues.TICKER;
import static baton.store.file.StoredValues.await;
import static baton.store.file.StoredValues.failures;
import static baton.store.file.StoredValues.format;
import static baton.store.file.StoredValues.get;
import static baton.store.file.StoredValues.key;
import static baton.store.file.StoredValues.keys;
import static baton.store.file.StoredValues.over;
import static baton.store.file.StoredValues.put;
import static baton.store.file.StoredValues.soon;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.BlockHash;
import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.FileOperations;
import baton.store.IoThreads;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.SystemIoThreads;
import baton.store.ValueRanges;
import baton.testkit.VirtualTicker;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.nio.channels.FileChannel;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** Damaged files, and directories that fail or do not answer. */
class FileStoreFaultsTest {
    private static final Duration READING = Duration.ofSeconds(1);

    @TempDir
    Path root;

    private final List<BlockStore> stores = new ArrayList<>();

    @AfterEach
    void close() {
        stores.forEach(BlockStore::close);
    }

    private FileStoreSettings settings(Path directory) {
        return FileStoreSettings.of("tier.root_dir", directory);
    }

    private BlockStore open(StoreFormat format) {
        return open(settings(root), format, FileOperations.SYSTEM);
    }

    private BlockStore open(FileStoreSettings settings, StoreFormat format, FileOperations files) {
        CountedThreads threads = new CountedThreads();
        BlockStore store = FileBlockStore.open(settings, format, TICKER, threads, files);
        stores.add(store);
        await("the index", () -> threads.running.get() == 0);
        return store;
    }

    /** Tells whether any runs. */
    private static final class CountedThreads implements IoThreads {
        private final IoThreads threads = new SystemIoThreads();
        private final AtomicInteger running = new AtomicInteger();

        @Override
        public void start(Runnable action) {
            running.incrementAndGet();
            threads.start(() -> {
                try {
                    action.run();
                } finally {
                    running.decrementAndGet();
                }
            });
        }

        @Override
        public void awaitChange(Object monitor) throws InterruptedException {
            threads.awaitChange(monitor);
        }
    }

    private Path file(BlockHash key) {
        return FsPathLayout.of(SMALL).value(root, 0, key.toString(), 0);
    }

    interface Damage {
        void to(Path file) throws IOException;
    }

    private static Damage flip(long at) {
        return file -> {
            try (RandomAccessFile bytes = new RandomAccessFile(file.toFile(), "rw")) {
                bytes.seek(at < 0 ? bytes.length() + at : at);
                int old = bytes.read();
                bytes.seek(bytes.getFilePointer() - 1);
                bytes.write(old ^ 0x10);
            }
        };
    }

    private static Damage resize(long change) {
        return file -> {
            try (RandomAccessFile bytes = new RandomAccessFile(file.toFile(), "rw")) {
                bytes.setLength(Math.max(0, bytes.length() + change));
            }
        };
    }

    private static final Damage ZERO = file -> Files.write(file, new byte[(int) Files.size(file)]);

    static Stream<Arguments> damages() {
        return Stream.of(
                Arguments.of("empty", resize(Long.MIN_VALUE), "truncated"),
                Arguments.of("cut", resize(-1), "truncated"),
                Arguments.of("too long", resize(4096), "truncated"),
                Arguments.of("all zero", ZERO, "corrupt"),
                Arguments.of("another magic", flip(0), "corrupt"),
                Arguments.of("another version", flip(8), "corrupt"),
                Arguments.of("another size in the header", flip(16), "corrupt"),
                Arguments.of("another key in the header", flip(24), "corrupt"),
                Arguments.of("another checksum in the header", flip(88), "corrupt"),
                Arguments.of("first byte of the value", flip(4096), "corrupt"),
                Arguments.of("last byte of the value", flip(-1), "corrupt"),
                Arguments.of(
                        "another key's",
                        (Damage) file -> Files.copy(
                                file.resolveSibling("../../" + otherKeysFile()),
                                file,
                                StandardCopyOption.REPLACE_EXISTING),
                        "other_key"));
    }

    private static Path otherKeysFile() {
        Path other = FsPathLayout.of(SMALL).value(Path.of(""), 0, key(2).toString(), 0);
        return other.subpath(1, other.getNameCount());
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("damages")
    void aDamagedFileIsAMissAndDeletedAndCanBeWrittenAgain(String name, Damage damage, String cause)
            throws IOException {
        BlockStore store = open(SMALL);
        List<BlockHash> keys = keys(1, 3);
        assertThat(put(store, keys)).isEqualTo(3);
        damage.to(file(key(1)));
        assertThat(get(store, keys)).containsExactly(key(2), key(3));
        assertThat(failures(store)).isEqualTo(Map.of("get/" + cause, 1));
        assertThat(file(key(1))).doesNotExist();
        assertThat(over(store.contains(keys, soon())).succeeded(0)).isFalse();
        assertThat(put(store, keys)).isEqualTo(3);
        assertThat(get(store, keys)).isEqualTo(keys);
    }

    @Test
    void aFileOfAnotherFormatUnderTheNameOfOneIsAMiss() throws IOException {
        BlockStore other = open(new StoreFormat(SMALL.model(), SMALL.layout(), 1, 2, 1));
        put(other, keys(1, 1));
        BlockStore store = open(SMALL);
        Files.createDirectories(file(key(1)).getParent());
        Files.copy(FsPathLayout.of(other.format()).value(root, 0, key(1).toString(), 0), file(key(1)));
        assertThat(get(store, keys(1, 1))).isEmpty();
        assertThat(failures(store)).isEqualTo(Map.of("get/other_format", 1));
    }

    static Stream<Arguments> otherKinds() {
        return Stream.of(
                Arguments.of("directory", (Damage) Files::createDirectory),
                Arguments.of("link", (Damage) file -> Files.createSymbolicLink(file, otherKind(file))),
                Arguments.of("pipe", (Damage) FileStoreFaultsTest::pipe));
    }

    /** An intact file of the key elsewhere: only following the link would find it. */
    private static Path otherKind(Path file) throws IOException {
        return Files.write(file.resolveSibling("elsewhere"), new byte[4096 + 8192]);
    }

    private static void pipe(Path file) throws IOException {
        try {
            Process mkfifo = new ProcessBuilder("mkfifo", file.toString()).start();
            assumeTrue(
                    mkfifo.waitFor(20, TimeUnit.SECONDS) && mkfifo.exitValue() == 0, "there is no mkfifo on the PATH");
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    @ParameterizedTest(name = "{0}")
    @MethodSource("otherKinds")
    void anythingButAFileIsAMissAndStays(String name, Damage make) throws IOException {
        BlockStore store = open(SMALL);
        Files.createDirectories(file(key(1)).getParent());
        make.to(file(key(1)));
        assertThat(get(store, keys(1, 1))).isEmpty();
        assertThat(over(store.contains(keys(1, 1), soon())).succeeded(0)).isFalse();
        assertThat(put(store, keys(1, 1))).isZero();
        assertThat(failures(store)).isEqualTo(Map.of("get/foreign", 1, "contains/foreign", 1, "put/foreign", 1));
        assertThat(Files.exists(file(key(1)), LinkOption.NOFOLLOW_LINKS)).isTrue();
    }

    @Test
    void linksToDirectoriesBelowTheRootAreNotFollowed(@TempDir Path elsewhere) throws IOException {
        BlockStore store = open(SMALL);
        Path prefix = file(key(1)).resolve("../..").normalize();
        Files.createDirectories(root.resolve(FsPathLayout.of(SMALL).values(0)));
        Files.createSymbolicLink(prefix, elsewhere);
        assertThat(put(store, keys(1, 1))).isZero();
        assertThat(get(store, keys(1, 1))).isEmpty();
        try (Stream<Path> files = Files.list(elsewhere)) {
            assertThat(files).isEmpty();
        }
    }

    @Test
    void aFileThatIsRemovedMeanwhileIsAMiss() throws IOException {
        BlockStore store = open(SMALL);
        put(store, keys(1, 2));
        store.takeEvents();
        Files.delete(file(key(1)));
        assertThat(get(store, keys(1, 2))).containsExactly(key(2));
        assertThat(failures(store)).isEqualTo(Map.of("get/absent", 1));
        assertThat(store.takeEvents()).singleElement().satisfies(event -> {
            assertThat(event.stored()).isFalse();
            assertThat(event.keys()).containsExactly(key(1));
        });
    }

    @Test
    void allDirectoriesMayBeRemovedMeanwhile() throws IOException {
        BlockStore store = open(SMALL);
        put(store, keys(1, 2));
        FileOperations.SYSTEM.deleteTree(root.resolve(FsPathLayout.of(SMALL).values(0)));
        assertThat(get(store, keys(1, 2))).isEmpty();
        assertThat(put(store, keys(1, 2))).isEqualTo(2);
        assertThat(get(store, keys(1, 2))).hasSize(2);
    }

    @Test
    void aRootThatIsAFileIsRefusedByTheNameOfItsSetting() throws IOException {
        Path file = Files.createFile(root.resolve("file"));
        assertThatThrownBy(() -> open(settings(file), SMALL, FileOperations.SYSTEM))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("tier.root_dir")
                .hasMessageContaining(file.toString())
                .hasMessageContaining("not a directory");
        assertThatThrownBy(() -> open(settings(file.resolve("below")), SMALL, FileOperations.SYSTEM))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("tier.root_dir");
    }

    @Test
    void aMissingRootIsMadeAndAConfigFileThatACrashHasCutIsReplaced() throws IOException {
        Path missing = root.resolve("not/there");
        open(settings(missing), SMALL, FileOperations.SYSTEM);
        Path config = missing.resolve(FsPathLayout.of(SMALL).directory(), "config.json");
        String text = Files.readString(config);
        assertThat(text).contains("\"inference_engine\" : \"baton\"", "\"model_name\" : \"org/model\"");
        Files.writeString(config, text.substring(0, 20));
        open(settings(missing), SMALL, FileOperations.SYSTEM);
        assertThat(config).hasContent(text);
    }

    @Test
    void aConfigFileOfOtherSettingsIsRefused() throws IOException {
        open(SMALL);
        Path config = root.resolve(FsPathLayout.of(SMALL).directory(), "config.json");
        Files.writeString(config, Files.readString(config).replace("org/model", "org/other"));
        assertThatThrownBy(() -> open(SMALL))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("tier.root_dir")
                .hasMessageContaining("org/other");
    }

    /** Opening a pipe without a writer does not return: a system call that really hangs. */
    private final class Pipes implements FileOperations {
        private final Path pipe = root.resolve("pipe");
        private final AtomicInteger hanging = new AtomicInteger();

        private Pipes() throws IOException {
            pipe(pipe);
        }

        @Override
        public FileChannel openToRead(Path file, OpenOption... more) throws IOException {
            if (!file.toString().endsWith(".bin")) {
                return FileOperations.super.openToRead(file, more);
            }
            hanging.incrementAndGet();
            return FileChannel.open(pipe, StandardOpenOption.READ);
        }

        private void awaitHanging(int threads) {
            await("threads hang", () -> hanging.get() == threads);
        }

        /** Ends hanging opens, which then find an end of file, until all have ended. */
        private void release(StoreTask... tasks) {
            await("the system calls have returned", () -> {
                // To read too: this does not wait for a reader, which may be about to open it.
                try (FileChannel channel = FileChannel.open(pipe, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
                    assertThat(channel.isOpen()).isTrue();
                } catch (IOException e) {
                    throw new UncheckedIOException(e);
                }
                return Stream.of(tasks).allMatch(StoreTask::isQuiet);
            });
        }
    }

    @Test
    void aReadThatHangsIsDoneAtItsDeadlineAndQuietWhenTheSystemCallReturns() throws IOException {
        put(open(SMALL), keys(1, 4));
        Pipes pipes = new Pipes();
        FileStoreSettings two = new FileStoreSettings(
                "root", root, 2, 2, 8, FileStoreSettings.IoMode.BUFFERED, false, FileStoreSettings.Limits.NONE);
        BlockStore store = open(two, SMALL, pipes);
        VirtualTicker ticker = new VirtualTicker();
        try (Arena arena = Arena.ofShared()) {
            StoreTask first = read(store, arena, key(1), ticker);
            StoreTask second = read(store, arena, key(2), ticker);
            pipes.awaitHanging(2);
            StoreTask queued = read(store, arena, key(3), ticker);
            ticker.advance(READING);
            await("both reads are over", () -> first.isDone() && second.isDone() && queued.isDone());
            assertThat(first.succeededCount()).isZero();
            assertThat(first.isQuiet()).isFalse();
            assertThat(second.isQuiet()).isFalse();
            assertThat(queued.isQuiet()).as("the task that was only queued").isTrue();
            StoreTask rejected = read(store, arena, key(4), ticker);
            assertThat(rejected.isDone()).isTrue();
            assertThat(rejected.isQuiet()).isTrue();
            assertThat(failures(store)).isEqualTo(Map.of("get/timeout", 3, "get/rejected", 1));
            // Writing and looking up have threads of their own.
            assertThat(put(store, keys(5, 1))).isEqualTo(1);
            pipes.release(first, second);
        }
    }

    private static StoreTask read(BlockStore store, Arena arena, BlockHash key, Ticker ticker) {
        ValueRanges ranges = new ValueRanges(arena.allocate(SMALL.valueBytes())).add(0, 0, 0, SMALL.valueBytes());
        return store.get(List.of(key), List.of(ranges), Deadline.after(ticker, READING));
    }

    @Test
    void aStoreWithAHangingDirectoryIsClosed() throws IOException {
        put(open(SMALL), keys(1, 1));
        Pipes pipes = new Pipes();
        // Closing waits for some seconds of this clock, on which one passes whenever it is looked at.
        AtomicBoolean closing = new AtomicBoolean();
        AtomicLong skipped = new AtomicLong();
        Ticker clock = () -> TICKER.nanos() + (closing.get() ? skipped.addAndGet(TimeUnit.SECONDS.toNanos(1)) : 0);
        BlockStore store = FileBlockStore.open(settings(root), SMALL, clock, new SystemIoThreads(), pipes);
        VirtualTicker ticker = new VirtualTicker();
        try (Arena arena = Arena.ofShared()) {
            StoreTask task = read(store, arena, key(1), ticker);
            pipes.awaitHanging(1);
            ticker.advance(READING);
            assertThat(task.isDone()).isTrue();
            closing.set(true);
            store.close();
            assertThat(task.isQuiet()).isFalse();
            pipes.release(task);
        }
    }

    @Test
    void aFullDeviceIsCountedAndLeavesNothingAndIsTriedAgainAfterAWhile() throws Exception {
        Path small = Files.createDirectory(root.resolve("small"));
        mount(small, "-t", "tmpfs", "-o", "size=512k", "tmpfs");
        try {
            VirtualTicker ticker = new VirtualTicker();
            // Files that are written at the same time could all be incomplete when the device is full.
            FileStoreSettings oneWriter = new FileStoreSettings(
                    "root", small, 2, 1, 8, FileStoreSettings.IoMode.BUFFERED, false, FileStoreSettings.Limits.NONE);
            try (BlockStore store = FileBlockStore.open(oneWriter, format(32), ticker)) {
                assertThat(put(store, keys(1, 3))).isEqualTo(1);
                assertThat(failures(store)).isEqualTo(Map.of("put/no_space", 2));
                try (Stream<Path> files = Files.walk(small)) {
                    assertThat(files.filter(file -> file.toString().endsWith(".bin")
                                    || file.toString().endsWith(".tmp")))
                            .hasSize(1);
                }
                assertThat(put(store, keys(4, 1))).isZero();
                assertThat(failures(store)).isEqualTo(Map.of("put/paused", 1));
                FileOperations.SYSTEM.deleteTree(
                        small.resolve(FsPathLayout.of(store.format()).values(0)));
                ticker.advance(FileBlockStore.PAUSE);
                assertThat(put(store, keys(4, 1))).isEqualTo(1);
                assertThat(get(store, keys(1, 4))).containsExactly(key(4));
            }
        } finally {
            unmount(small);
        }
    }

    @Test
    void aReadOnlyFileSystemIsReadAndWritingIsCounted() throws Exception {
        Path mounted = Files.createDirectory(root.resolve("mounted"));
        mount(mounted, "-t", "tmpfs", "-o", "size=1m", "tmpfs");
        try {
            try (BlockStore store = FileBlockStore.open(settings(mounted), SMALL, TICKER)) {
                put(store, keys(1, 2));
            }
            mount(mounted, "-o", "remount,ro");
            try (BlockStore store = FileBlockStore.open(settings(mounted), SMALL, TICKER)) {
                assertThat(get(store, keys(1, 3))).containsExactly(key(1), key(2));
                assertThat(put(store, keys(3, 1))).isZero();
                assertThat(failures(store)).isEqualTo(Map.of("get/absent", 1, "put/denied", 1));
            }
            StoreFormat other = format(2);
            try (BlockStore store = FileBlockStore.open(settings(mounted), other, TICKER)) {
                assertThat(get(store, keys(1, 1))).isEmpty();
            }
        } finally {
            unmount(mounted);
        }
    }

    private static void mount(Path at, String... options) throws Exception {
        List<String> command = new ArrayList<>(List.of("mount"));
        command.addAll(List.of(options));
        command.add(at.toString());
        Process mount = new ProcessBuilder(command).start();
        assumeTrue(
                mount.waitFor(20, TimeUnit.SECONDS) && mount.exitValue() == 0,
                "mounting a tmpfs takes root and CAP_SYS_ADMIN");
    }

    private static void unmount(Path at) throws Exception {
        new ProcessBuilder("umount", at.toString()).start().waitFor();
    }

    /** Without a permission to mount: the errors as the JDK reports them. */
    @Test
    void errorsOfWritingAreCountedByCause() {
        List<IOException> errors = new ArrayList<>();
        BlockStore store = FileBlockStore.open(
                settings(root), SMALL, new VirtualTicker(), new SystemIoThreads(), new FileOperations() {
                    @Override
                    public FileChannel create(Path file, OpenOption... more) throws IOException {
                        if (!errors.isEmpty()) {
                            throw errors.removeFirst();
                        }
                        return FileOperations.super.create(file, more);
                    }
                });
        stores.add(store);
        errors.add(new IOException("No space left on device"));
        assertThat(put(store, keys(1, 1))).isZero();
        assertThat(failures(store)).isEqualTo(Map.of("put/no_space", 1));
        errors.add(new AccessDeniedException("x"));
        assertThat(put(store, keys(1, 1))).isZero();
        assertThat(failures(store)).isEqualTo(Map.of("put/paused", 1));
    }
}
