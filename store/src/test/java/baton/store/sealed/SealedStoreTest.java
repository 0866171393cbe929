package baton.store.sealed;

import static baton.store.BlockStoreContract.over;
import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.messages.PeerSecret;
import baton.store.BlockStore;
import baton.store.BlockStoreContract;
import baton.store.MapStore;
import baton.store.StoreFormat;
import baton.store.ValueRanges;
import baton.store.file.FileBlockStore;
import baton.store.file.FileStoreSettings;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class SealedStoreTest extends BlockStoreContract {
    private static final BlockHash KEY = new BlockHash(1, 2, 3, 4);
    private static final BlockHash OTHER = new BlockHash(5, 6, 7, 8);
    private static final String TEXT = "a prompt can be computed from its KV cache";

    @TempDir
    Path root;

    /** Sealed values, by their keys. */
    private final Map<BlockHash, byte[]> values = new HashMap<>();

    private PeerSecret secret(String text) throws IOException {
        return PeerSecret.read("kv_store_key_file", Files.writeString(root.resolve("secret"), text));
    }

    @Override
    protected Medium medium() throws IOException {
        return files(secret("a secret of the instances"));
    }

    private Medium files(PeerSecret secret) {
        return new Medium() {
            @Override
            public BlockStore open(StoreFormat format) {
                return SealedStore.over(
                        each -> FileBlockStore.open(
                                FileStoreSettings.of("root_dir", root.resolve("values")), each, Ticker.system()),
                        format,
                        secret,
                        Ticker.system());
            }

            @Override
            public boolean isDurable() {
                return true;
            }
        };
    }

    private SealedStore inMap(StoreFormat format, String secret) throws IOException {
        return SealedStore.over(each -> new MapStore(each, values), format, secret(secret), Ticker.system());
    }

    private static Deadline soon() {
        return Deadline.after(Ticker.system(), Duration.ofMinutes(2));
    }

    private static byte[] value() {
        byte[] value = new byte[(int) FORMAT.valueBytes()];
        System.arraycopy(TEXT.getBytes(StandardCharsets.US_ASCII), 0, value, 0, TEXT.length());
        return value;
    }

    private static void put(BlockStore store, BlockHash key) {
        try (Arena arena = Arena.ofShared()) {
            MemorySegment memory = arena.allocate(FORMAT.valueBytes());
            memory.copyFrom(MemorySegment.ofArray(value()));
            ValueRanges from = new ValueRanges(memory).add(0, 0, 0, FORMAT.valueBytes());
            assertThat(over(store.put(List.of(key), List.of(from), soon())).succeeded(0))
                    .isTrue();
        }
    }

    private static boolean isRead(BlockStore store, BlockHash key) {
        try (Arena arena = Arena.ofShared()) {
            MemorySegment memory = arena.allocate(FORMAT.valueBytes());
            ValueRanges to = new ValueRanges(memory).add(0, 0, 0, FORMAT.valueBytes());
            boolean read = over(store.get(List.of(key), List.of(to), soon())).succeeded(0);
            assertThat(memory.toArray(ValueLayout.JAVA_BYTE)).isEqualTo(read ? value() : new byte[value().length]);
            return read;
        }
    }

    private static double refused(BlockStore store) {
        return store.takeMeasurements().stream()
                .filter(each -> "seal".equals(each.labels().get("cause")))
                .mapToDouble(each -> each.value())
                .sum();
    }

    @Test
    void theStoreSeesNoByteOfAValueAndNoValueTwiceAlike() throws IOException {
        try (BlockStore store = inMap(FORMAT, "a secret of the instances")) {
            put(store, KEY);
            byte[] first = values.remove(KEY);
            put(store, KEY);
            assertThat(new String(first, StandardCharsets.ISO_8859_1)).doesNotContain("prompt");
            assertThat(first).hasSize(value().length + StoreFormat.SEAL_BYTES).isNotEqualTo(values.get(KEY));
            assertThat(isRead(store, KEY)).isTrue();
        }
    }

    @Test
    void aValueThatWasChangedMovedOrSealedOtherwiseIsAMissAndCounted() throws IOException {
        try (BlockStore store = inMap(FORMAT, "a secret of the instances")) {
            put(store, KEY);
            byte[] stored = Objects.requireNonNull(values.get(KEY));
            for (int at : new int[] {0, 11, 12, stored.length / 2, stored.length - 1}) {
                stored[at] ^= 1;
                assertThat(isRead(store, KEY)).as("byte %d is changed", at).isFalse();
                stored[at] ^= 1;
            }
            values.put(OTHER, stored);
            assertThat(isRead(store, OTHER)).as("the value of another block").isFalse();
            assertThat(refused(store)).isEqualTo(6);
            assertThat(isRead(store, KEY)).isTrue();
        }
        try (BlockStore store = inMap(FORMAT, "another secret, of others")) {
            assertThat(isRead(store, KEY)).as("with another secret").isFalse();
        }
        StoreFormat ranks = new StoreFormat(FORMAT.model(), FORMAT.layout(), 2, 2, 1);
        try (BlockStore store = inMap(ranks, "a secret of the instances")) {
            assertThat(isRead(store, KEY)).as("of another format").isFalse();
        }
    }

    @Test
    void storesOfOtherKeysHaveOtherNames() throws Exception {
        try (BlockStore store = medium().open(FORMAT)) {
            put(store, KEY);
        }
        try (BlockStore plain = FileBlockStore.open(
                FileStoreSettings.of("root_dir", root.resolve("values")), FORMAT, Ticker.system())) {
            assertThat(over(plain.contains(List.of(KEY), soon())).succeeded(0)).isFalse();
        }
        try (BlockStore other = files(secret("another secret, of others")).open(FORMAT)) {
            assertThat(over(other.contains(List.of(KEY), soon())).succeeded(0)).isFalse();
        }
        try (BlockStore same = medium().open(FORMAT)) {
            assertThat(over(same.contains(List.of(KEY), soon())).succeeded(0)).isTrue();
        }
    }
}
