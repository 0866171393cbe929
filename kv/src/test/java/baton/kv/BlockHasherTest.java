package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class BlockHasherTest {
    private static final int[] TOKENS = {0, 1, 2, 3, 4, 300, 70000, Integer.MAX_VALUE, 9};

    private final BlockHasher hasher = new BlockHasher(4);

    private static String seed(String pythonHashSeed) {
        return HashAlgorithm.seed(pythonHashSeed.equals("-") ? Map.of() : Map.of("PYTHONHASHSEED", pythonHashSeed));
    }

    @Test
    void hashesEqualThoseOfVllm() throws IOException {
        int lines = 0;
        try (InputStream in =
                Objects.requireNonNull(BlockHasherTest.class.getResourceAsStream("vllm-block-hashes.txt"))) {
            for (String line : new String(in.readAllBytes(), StandardCharsets.UTF_8).split("\n")) {
                if (line.startsWith("#")) {
                    continue;
                }
                String[] fields = line.split(" ");
                Optional<String> salt = fields[3].equals("-")
                        ? Optional.empty()
                        : Optional.of(new String(HexFormat.of().parseHex(fields[3]), StandardCharsets.UTF_8));
                int[] tokens = Arrays.stream(fields[4].split(","))
                        .mapToInt(Integer::parseInt)
                        .toArray();
                assertThat(new BlockHasher(
                                        HashAlgorithm.parse("test", fields[0]),
                                        seed(fields[1]),
                                        Integer.parseInt(fields[2]))
                                .chain(tokens, salt))
                        .as(line)
                        .extracting(BlockHash::toString)
                        .containsExactly(fields[5].split(","));
                lines++;
            }
        }
        assertThat(lines).isGreaterThan(30);
    }

    /** The expected hashes are of blocks of the tokens 0 to 15 and 16 to 31. */
    @ParameterizedTest
    @CsvSource({
        "SHA256, fe8fa5dda3210d0ca2031e37cbe3b001186773cd1c710beb2d45fcb51d434798, 8be7aaa33831156d316f1f463ae57e643deb63f42e633e2d631df88815cc4629",
        "SHA256_CBOR, dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749, c300ec275d7bf08af8fc63e76cdc0086911bbc7091e03c5cf892553bef84ef0c"
    })
    void hashesOfBlocksOfSixteenTokens(HashAlgorithm algorithm, String first, String second) {
        assertThat(new BlockHasher(algorithm, seed("-"), 16)
                        .chain(IntStream.range(0, 32).toArray(), Optional.empty()))
                .extracting(BlockHash::toString)
                .containsExactly(first, second);
    }

    @Test
    void saltSeparatesAndAnEmptyOneIsNone() {
        List<BlockHash> plain = hasher.chain(TOKENS, Optional.empty());
        List<BlockHash> salted = hasher.chain(TOKENS, Optional.of("x"));
        assertThat(salted).doesNotContainAnyElementsOf(plain);
        assertThat(hasher.chain(TOKENS, Optional.of("y"))).doesNotContainAnyElementsOf(salted);
        assertThat(hasher.chain(TOKENS, Optional.of(""))).isEqualTo(plain);
    }

    @Test
    void aHashStandsForEverythingBeforeIt() {
        List<BlockHash> hashes = hasher.chain(TOKENS, Optional.empty());
        int[] changed = TOKENS.clone();
        changed[0] = 7;

        assertThat(hasher.chain(changed, Optional.empty()).get(1)).isNotEqualTo(hashes.get(1));
        assertThat(hasher.next(hashes.get(0), TOKENS, 4)).isEqualTo(hashes.get(1));
        assertThat(hasher.chain(new int[] {0, 1, 2, 3, 4, 300, 70000}, Optional.empty()))
                .containsExactly(hashes.get(0));
        assertThat(hasher.chain(new int[] {0, 1, 2}, Optional.empty())).isEmpty();
        assertThat(BlockHash.of(hashes.get(0).toBytes()))
                .isEqualTo(hashes.get(0))
                .hasSameHashCodeAs(hashes.get(0));
    }

    @Test
    void otherAlgorithmsAreRefused() {
        assertThatThrownBy(() -> HashAlgorithm.parse("prefix_caching_hash_algo", "xxhash"))
                .isInstanceOf(ConfigException.class)
                .hasMessage("prefix_caching_hash_algo: unsupported value 'xxhash'; allowed: sha256, sha256_cbor");
    }
}
