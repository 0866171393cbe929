package baton.connectors.onesided;

import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.connector.Rank;
import baton.transfer.TransferException;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Peers that do not fit are refused by an error that says why. */
class PeerEngineTest {
    @ParameterizedTest
    @CsvSource({"F16, BF16", "BF16, F8_E4M3", "F8_E4M3, F16"})
    void cachesOfTwoTypesAreNamed(DType its, DType own) {
        for (boolean enforced : new boolean[] {true, false}) {
            assertThatThrownBy(() -> PeerEngine.check(rank(its), rank(own), enforced, "NIXL"))
                    .isInstanceOf(TransferException.class)
                    .hasMessage(
                            "its KV cache is of %s, that of this instance of %s; --dtype and --kv-cache-dtype of both must be the same"
                                    .formatted(its.torchName(), own.torchName()));
        }
    }

    private static RankInfo rank(DType dtype) {
        return new RankInfo(
                "engine",
                dtype.name(),
                List.of(),
                "model",
                Rank.FIRST,
                1,
                1,
                new byte[0],
                new KvLayout(1, 1, 16, 16, dtype),
                1,
                new LayerRegions(new long[] {4096}, new long[] {4096}, OptionalInt.empty()),
                List.of(),
                BlockInterior.HEADS,
                1,
                1,
                Optional.empty(),
                Optional.empty());
    }
}
