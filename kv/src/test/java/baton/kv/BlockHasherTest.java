package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;

class BlockHasherTest {
    private static final ModelFingerprint MODEL = new ModelFingerprint("tiny", "0123abcd");
    private static final int[] TOKENS = {0, 1, 2, 3, 4, 300, 70000, Integer.MAX_VALUE, 9};

    private final BlockHasher hasher = new BlockHasher(MODEL, 4);

    /** The expected values were computed by Python's hashlib from the class's documentation. */
    @Test
    void everyProcessComputesTheseHashes() {
        BlockHash root = hasher.root(Optional.empty(), Optional.empty());

        assertThat(root).hasToString("d780f8d9d33bf31142517cc014a24a68e313b3d49c8b89617929fde14affa92e");
        assertThat(hasher.chain(root, TOKENS))
                .extracting(BlockHash::toString)
                .containsExactly(
                        "affcb88ec40c8a9988c3b26bce71fb92de4b7b29281ed0455b23e8ea239ba42d",
                        "97f5c4a998a47e7919b42da8183d5780ce316292196537001c129c263c650f42");
        assertThat(hasher.root(Optional.of("adapter"), Optional.of("säle")))
                .hasToString("a146f6189693411a76e2ce2f3b52d40905b3cad5672548bcd3ce13a530e26e87");
    }

    @Test
    void modelAdapterAndSaltSeparate() {
        Optional<String> none = Optional.empty();
        Optional<String> x = Optional.of("x");
        BlockHasher other = new BlockHasher(new ModelFingerprint("tiny", "0123abce"), 4);
        BlockHasher renamed = new BlockHasher(new ModelFingerprint("other name", "0123abcd"), 4);

        assertThat(List.of(
                        hasher.root(none, none),
                        hasher.root(x, none),
                        hasher.root(none, x),
                        hasher.root(x, x),
                        hasher.root(Optional.of(""), none),
                        hasher.root(Optional.of("x4:salt"), none),
                        other.root(none, none)))
                .doesNotHaveDuplicates();
        assertThat(renamed.root(x, x)).isEqualTo(hasher.root(x, x));
    }

    @Test
    void aHashStandsForEverythingBeforeIt() {
        BlockHash root = hasher.root(Optional.empty(), Optional.empty());
        List<BlockHash> hashes = hasher.chain(root, TOKENS);
        int[] changed = TOKENS.clone();
        changed[0] = 7;

        assertThat(hasher.chain(root, changed).get(1)).isNotEqualTo(hashes.get(1));
        assertThat(hasher.next(hashes.get(0), TOKENS, 4)).isEqualTo(hashes.get(1));
        assertThat(hasher.chain(root, new int[] {0, 1, 2, 3, 4, 300, 70000})).containsExactly(hashes.get(0));
        assertThat(hasher.chain(root, new int[] {0, 1, 2})).isEmpty();
        assertThat(BlockHash.of(hashes.get(0).toBytes()))
                .isEqualTo(hashes.get(0))
                .hasSameHashCodeAs(hashes.get(0));
    }
}
