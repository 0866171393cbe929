package baton.engine.core;

import static org.assertj.core.api.Assertions.assertThat;

import baton.connectors.sharedstorage.SharedStorageConnector;
import baton.engine.FinishReason;
import baton.engine.core.CoreHarness.Result;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.store.FileOperations;
import baton.store.SystemIoThreads;
import java.io.IOException;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.function.Predicate;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Requests beside one with a directory that does not answer. */
class HangingStorageTest {
    private static final int BLOCK = 4;

    @TempDir
    Path root;

    /** Paths that a predicate chooses do not answer until they are released; as on a hard mount, no interrupt helps. */
    private static final class HangingFiles implements FileOperations {
        private final Predicate<Path> hangs;
        private final CountDownLatch reached = new CountDownLatch(1);
        private final CountDownLatch released = new CountDownLatch(1);

        private HangingFiles(Predicate<Path> hangs) {
            this.hangs = hangs;
        }

        @Override
        public BasicFileAttributes attributes(Path path) throws IOException {
            if (hangs.test(path)) {
                reached.countDown();
                awaitUninterruptibly(released);
            }
            return FileOperations.super.attributes(path);
        }

        private static void awaitUninterruptibly(CountDownLatch latch) {
            boolean interrupted = false;
            while (true) {
                try {
                    if (!latch.await(600, TimeUnit.SECONDS)) {
                        throw new AssertionError("not released");
                    }
                    break;
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    @ParameterizedTest
    @EnumSource(KvRole.class)
    void aLookUpThatHangsHoldsUpItsOwnRequestOnly(KvRole role) throws Exception {
        AtomicReference<Path> first = new AtomicReference<>();
        HangingFiles files = new HangingFiles(path -> {
            first.compareAndSet(null, path);
            return path.equals(first.get());
        });
        try (CoreHarness harness = harness(role, files)) {
            int[] prompt = CoreHarness.prompt(1, 4 * BLOCK + 1);
            Result hanging = harness.add("hanging", prompt, 3);
            harness.step();
            assertThat(files.reached.await(120, TimeUnit.SECONDS)).isTrue();

            List<Result> beside = new ArrayList<>();
            for (int i = 2; i < 8; i++) {
                beside.add(harness.add("beside-" + i, CoreHarness.prompt(i, 4 * BLOCK + i), 3));
            }
            stepUntil(harness, () -> beside.stream().allMatch(result -> result.reason.isPresent()));
            assertThat(files.released.getCount()).isEqualTo(1);
            assertThat(hanging.reason).isEmpty();
            for (Result result : beside) {
                assertThat(result.tokens).isEqualTo(CoreHarness.expected(result.prompt, 3));
            }

            files.released.countDown();
            stepUntil(harness, () -> hanging.reason.isPresent());
            assertThat(hanging.tokens).isEqualTo(CoreHarness.expected(prompt, 3));
        }
    }

    @Test
    void whileAllLookUpsHangPromptsWithoutEntriesAreServed() throws Exception {
        HangingFiles files = new HangingFiles(_ -> true);
        try (CoreHarness harness = harness(KvRole.BOTH, files)) {
            List<Result> hanging = new ArrayList<>();
            for (int i = 0; i < 20; i++) {
                hanging.add(harness.add("hanging-" + i, CoreHarness.prompt(i, 4 * BLOCK + 1), 1));
            }
            harness.step();
            assertThat(files.reached.await(120, TimeUnit.SECONDS)).isTrue();
            Result small = harness.add("small", CoreHarness.prompt(50, BLOCK), 5);
            stepUntil(harness, () -> small.reason.isPresent());

            assertThat(files.released.getCount()).isEqualTo(1);
            assertThat(small.reason).contains(FinishReason.LENGTH);
            assertThat(hanging).allMatch(result -> result.reason.isEmpty());
            files.released.countDown();
            stepUntil(harness, () -> hanging.stream().allMatch(result -> result.reason.isPresent()));
            assertThat(hanging).allMatch(result -> result.tokens.equals(CoreHarness.expected(result.prompt, 1)));
        }
    }

    /** The harness's clock stands still in between, so no deadline ends a wait. */
    private static void stepUntil(CoreHarness harness, BooleanSupplier done) {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(120);
        while (!done.getAsBoolean()) {
            assertThat(System.nanoTime() - end).as("nanoseconds too late").isNegative();
            if (!harness.step()) {
                LockSupport.parkNanos(100_000);
            }
        }
    }

    private CoreHarness harness(KvRole role, FileOperations files) {
        KvTransferConfig config = KvTransferConfig.builder("SharedStorageConnector", role)
                .extra("shared_storage_path", root)
                .build();
        return new CoreHarness(
                64,
                BLOCK,
                settings -> settings.kvTransfer(config),
                Optional.of(new SharedStorageConnector(new SystemIoThreads(), files)));
    }
}
