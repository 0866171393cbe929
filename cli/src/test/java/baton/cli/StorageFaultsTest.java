package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.Instances.Reply;
import baton.cli.Ledgers.Case;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Hand-overs with files that are damaged between the two legs. Each test has a prompt of its own. */
@Tag("thorough")
class StorageFaultsTest {
    private static final int BLOCK_SIZE = 16;
    private static final int MAX_TOKENS = 16;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static Path shared;
    private static Instance prefill;

    /** Recomputes blocks that it cannot load. */
    private static Instance decode;

    /** An instance with the default policy: a request fails if its KV cannot be loaded. */
    private static Instance strict;

    @BeforeAll
    static void start() throws IOException {
        shared = INSTANCES.directory("kv");
        prefill = INSTANCES.serve("prefill", "kv_producer", shared);
        decode = INSTANCES.serve(
                "decode", "kv_consumer", shared, "--kv-transfer-config.kv_load_failure_policy", "recompute");
        strict = INSTANCES.serve("strict", "kv_consumer", shared);
    }

    @Test
    void anIntactEntryIsUsed() throws Exception {
        Case asked = Ledgers.named("recall-80");
        prefill(asked);
        Prompts before = decode.prompts();
        assertAnswered(asked, decode);
        int aligned = asked.aligned(BLOCK_SIZE);
        assertThat(decode.prompts().since(before)).isEqualTo(new Prompts(asked.prompt().length - aligned, 0, aligned));
    }

    @Test
    void aDeletedEntryIsRecomputed() throws Exception {
        Case asked = Ledgers.named("recall-120");
        delete(prefill(asked));
        assertRecomputed(asked, "baton:kv_broken_entries_total", "", 0);
    }

    @Test
    void aDeletedFileIsCountedAndRecomputed() throws Exception {
        Case asked = Ledgers.named("recall-180");
        Files.delete(aFile(prefill(asked)));
        assertRecomputed(asked, "baton:kv_broken_entries_total", "", 1);
        assertAnswered(asked, strict);
    }

    @Test
    void aTruncatedFileIsCountedAndRecomputed() throws Exception {
        Case asked = Ledgers.named("recall-260");
        Path file = aFile(prefill(asked));
        try (RandomAccessFile open = new RandomAccessFile(file.toFile(), "rw")) {
            open.setLength(open.length() / 2);
        }
        assertRecomputed(asked, "baton:kv_broken_entries_total", "", 1);
        assertThat(decode.log()).contains(file.getFileName().toString());
    }

    @Test
    void aFlippedByteIsNoticedCountedAndRecomputedOrFailsTheRequest() throws Exception {
        Case asked = Ledgers.named("recall-400");
        Path file = aFile(prefill(asked));
        try (RandomAccessFile open = new RandomAccessFile(file.toFile(), "rw")) {
            open.seek(open.length() - 1000);
            int old = open.read();
            open.seek(open.length() - 1000);
            open.write(old ^ 0x10);
        }

        Reply refused = strict.complete(asked.prompt(), MAX_TOKENS);
        assertThat(refused.status()).isEqualTo(500);
        assertThat(refused.error()).contains("KV load failed", "kv_load_failure_policy=fail");
        assertThat(strict.metric("baton:kv_load_failures_total", "\"digest\"")).isEqualTo(1);

        double before = decode.metric("baton:kv_recomputed_tokens_total", "");
        assertRecomputed(asked, "baton:kv_load_failures_total", "\"digest\"", 1);
        assertThat(decode.metric("baton:kv_recomputed_tokens_total", "") - before)
                .isEqualTo(asked.aligned(BLOCK_SIZE));
        // The entry is known to be bad by now: no load is tried.
        assertAnswered(asked, strict);
        assertThat(strict.metric("baton:kv_load_failures_total", "")).isEqualTo(1);
    }

    @Test
    void aFileOfAnotherFormatIsRecomputed() throws Exception {
        Case asked = Ledgers.named("recall-600");
        Path file = aFile(prefill(asked));
        Files.delete(file);
        Files.createDirectory(file);
        assertRecomputed(asked, "baton:kv_broken_entries_total", "", 1);
    }

    @Test
    void withoutTheDirectoryEverythingIsComputed() throws Exception {
        Case asked = Ledgers.named("recall-800");
        prefill(asked);
        Path moved = shared.resolveSibling("moved");
        Files.move(shared, moved);
        Files.writeString(shared, "a file where the directory was");
        try {
            assertRecomputed(asked, "baton:kv_load_failures_total", "", 0);
            double before = prefill.metric("baton:kv_save_failures_total", "");
            assertAnswered(Ledgers.named("absent-500"), prefill);
            assertThat(prefill.metric("baton:kv_save_failures_total", "") - before)
                    .isEqualTo(1);
        } finally {
            Files.delete(shared);
            Files.move(moved, shared);
        }
    }

    @Test
    void aFullDiskIsCountedAndTheRequestIsAnswered() throws Exception {
        Path small = INSTANCES.directory("small");
        Process mount = new ProcessBuilder("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", small.toString())
                .redirectErrorStream(true)
                .start();
        String said = new String(mount.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assumeTrue(mount.waitFor() == 0, "a small file system cannot be mounted here: " + said);
        try {
            Instance full = INSTANCES.serve("full", "kv_both", small);
            Case tooLarge = Ledgers.named("recall-260");
            assertAnswered(tooLarge, full);
            assertThat(full.metric("baton:kv_save_failures_total", "\"no_space\""))
                    .isEqualTo(1);
            assertThat(full.log()).contains("KV cache entries are not stored");
            try (Stream<Path> left = Files.list(small)) {
                assertThat(left).isEmpty();
            }
            Case fits = Ledgers.named("recall-40");
            assertAnswered(fits, full);
            assertThat(full.metric("baton:kv_save_failures_total", "")).isEqualTo(1);
            full.awaitRest();
            full.kill();
        } finally {
            assertThat(new ProcessBuilder("umount", small.toString()).start().waitFor())
                    .isZero();
        }
    }

    /** Runs the prefill leg; returns the entry that it stored. */
    private static Path prefill(Case asked) throws IOException, InterruptedException {
        List<Path> before = entries();
        assertThat(prefill.complete(asked.prompt(), 1).status()).isEqualTo(200);
        List<Path> stored =
                entries().stream().filter(entry -> !before.contains(entry)).toList();
        assertThat(stored).hasSize(1);
        return stored.getFirst();
    }

    private static List<Path> entries() throws IOException {
        try (Stream<Path> entries = Files.list(shared)) {
            return entries.toList();
        }
    }

    private static Path aFile(Path entry) throws IOException {
        try (Stream<Path> files = Files.list(entry)) {
            return files.min(Comparator.naturalOrder()).orElseThrow();
        }
    }

    private static void delete(Path entry) throws IOException {
        try (Stream<Path> files = Files.walk(entry)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }

    private static void assertAnswered(Case asked, Instance instance) throws IOException, InterruptedException {
        Reply reply = instance.complete(asked.prompt(), MAX_TOKENS);
        assertThat(reply.tokenIds()).isEqualTo(asked.answer());
        assertThat(reply.choice().path("finish_reason").asString()).isEqualTo("stop");
    }

    /** The decode instance answers rightly, computes the whole prompt itself, and counts why. */
    private static void assertRecomputed(Case asked, String counter, String label, int growth)
            throws IOException, InterruptedException {
        Prompts before = decode.prompts();
        double countedBefore = decode.metric(counter, label);
        assertAnswered(asked, decode);
        assertThat(decode.prompts().since(before)).isEqualTo(new Prompts(asked.prompt().length, 0, 0));
        assertThat(decode.metric(counter, label) - countedBefore).isEqualTo(growth);
    }
}
