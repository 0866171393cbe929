package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.Optional;
import java.util.Set;
import org.junit.jupiter.api.Test;

class PromptDigestTest {
    private static final ModelFingerprint MODEL = new ModelFingerprint("m", "00ff");

    @Test
    void digestOfAPromptIsFixedByTheWireFormat() {
        assertThat(PromptDigest.of(MODEL, Optional.empty(), Optional.empty(), new int[] {1, 2, 70000}))
                .isEqualTo("edd35798890d5283b64fac59aa1b6d6451348a18d3d5f432caa8662386042fe0");
    }

    @Test
    void digestsDifferByModelAdapterSaltAndTokens() {
        Optional<String> x = Optional.of("x");
        assertThat(Set.of(
                        PromptDigest.of(MODEL, Optional.empty(), Optional.empty(), new int[] {1, 2}),
                        PromptDigest.of(
                                new ModelFingerprint("m", "00fe"), Optional.empty(), Optional.empty(), new int[] {1, 2
                                }),
                        PromptDigest.of(MODEL, x, Optional.empty(), new int[] {1, 2}),
                        PromptDigest.of(MODEL, Optional.empty(), x, new int[] {1, 2}),
                        PromptDigest.of(MODEL, Optional.empty(), Optional.empty(), new int[] {1}),
                        PromptDigest.of(MODEL, Optional.empty(), Optional.empty(), new int[] {2, 1})))
                .hasSize(6);
    }
}
