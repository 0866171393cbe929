package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Against values of LMCache 0.5.6's ChunkedTokenDatabase, and of its algorithm computed in Python, of tokens 0, 1, 2, ... */
class ChunkHashingTest {
    private static List<String> two(ChunkHashing hashing, int chunk) {
        int[] tokens = IntStream.range(0, 2 * chunk).toArray();
        List<String> hashes = new ArrayList<>();
        long parent = hashing.first();
        for (int from = 0; from < tokens.length; from += chunk) {
            parent = hashing.next(parent, tokens, from, chunk);
            hashes.add(hashing.isSigned() ? Long.toString(parent, 16) : Long.toHexString(parent));
        }
        return hashes;
    }

    @Test
    void pythonsHashWithoutASeedIsThatOfLmCacheWithoutVllm() {
        ChunkHashing hashing = ChunkHashing.python(Map.of());
        assertThat(two(hashing, 16)).containsExactly("-1a6e12a9bdb7fd70", "44f2b6c6f61bea69");
        assertThat(two(hashing, 256)).containsExactly("2b763dd00afa89c8", "79e62c807b48385b");
    }

    @Test
    void pythonsHashWithASeedIsThatOfLmCacheInVllm() {
        ChunkHashing hashing = ChunkHashing.python(Map.of("PYTHONHASHSEED", "0"));
        assertThat(hashing.first()).isEqualTo(5313149338359954478L);
        assertThat(two(hashing, 16)).containsExactly("6e9ca116c2360103", "677ea5bfa434164c");
        assertThat(two(hashing, 256)).containsExactly("5f05dec65811b7cc", "-adc333b9eaa0e45");
    }

    @Test
    void cborDigestsAreThoseOfLmCache() {
        ChunkHashing zero = ChunkHashing.digest(HashAlgorithm.SHA256_CBOR, "0");
        assertThat(Long.toHexString(zero.first())).isEqualTo("4e1195df020de59e");
        assertThat(two(zero, 16)).containsExactly("7913e9343b88bdf9", "17c587bb83dc4528");
        assertThat(two(zero, 256)).containsExactly("b8a960cfcc69e7a5", "cc309e143d545625");
        ChunkHashing byDefault = ChunkHashing.digest(HashAlgorithm.SHA256_CBOR, "vllm-none-hash");
        assertThat(Long.toHexString(byDefault.first())).isEqualTo("9bd96a485ad84efd");
        assertThat(two(byDefault, 16)).containsExactly("1ac772afde1cd3f1", "1e8ee5649ca3c16a");
    }

    @Test
    void pythonsHashRefusesASeedThatPythonRefuses() {
        assertThatThrownBy(() -> ChunkHashing.python(Map.of("PYTHONHASHSEED", "random")))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("PYTHONHASHSEED")
                .hasMessageContaining("random");
    }
}
