package baton.connectors.bykey;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.BlockHash;
import java.util.List;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;

class TenantSharesTest {
    private static List<BlockHash> keys(long first, long end) {
        return LongStream.range(first, end)
                .mapToObj(i -> new BlockHash(i, 0, 0, 0))
                .toList();
    }

    @Test
    void valuesBeyondTheShareOfATenantAreItsOldest() {
        TenantShares shares = new TenantShares(0.5, 8);
        assertThat(shares.used("a", keys(0, 4))).isEmpty();
        assertThat(shares.used("b", keys(10, 12))).isEmpty();
        // The end of a prefix goes before its beginning.
        assertThat(shares.used("a", keys(4, 6)))
                .containsExactlyElementsOf(keys(2, 4).reversed());
    }

    @Test
    void requestsWithoutValuesOfManyTenantsAreForgotten() {
        TenantShares shares = new TenantShares(0.5, 4);
        assertThat(shares.used("short", List.of())).isEmpty();
        assertThat(shares.used("a", keys(0, 2))).isEmpty();
        assertThat(shares.used("b", keys(10, 12))).isEmpty();
        assertThat(shares.used("c", keys(20, 22))).isEmpty();
        // Those of the oldest tenant were evicted for others, so all of its new ones are within its share.
        assertThat(shares.used("a", keys(2, 4))).isEmpty();
    }
}
