package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;

class PromptRootTest {
    private static final ModelFingerprint MODEL = new ModelFingerprint("tiny", "0123abcd");

    private static String root(ModelFingerprint model, Optional<String> lora, Optional<String> salt) {
        return HexFormat.of().formatHex(PromptRoot.of(model, lora, salt));
    }

    /** The expected values were computed by Python's hashlib from the class's documentation. */
    @Test
    void everyProcessComputesTheseRoots() {
        assertThat(root(MODEL, Optional.empty(), Optional.empty()))
                .isEqualTo("d780f8d9d33bf31142517cc014a24a68e313b3d49c8b89617929fde14affa92e");
        assertThat(root(MODEL, Optional.of("adapter"), Optional.of("säle")))
                .isEqualTo("a146f6189693411a76e2ce2f3b52d40905b3cad5672548bcd3ce13a530e26e87");
    }

    @Test
    void modelAdapterAndSaltSeparate() {
        Optional<String> none = Optional.empty();
        Optional<String> x = Optional.of("x");
        assertThat(List.of(
                        root(MODEL, none, none),
                        root(MODEL, x, none),
                        root(MODEL, none, x),
                        root(MODEL, x, x),
                        root(MODEL, Optional.of(""), none),
                        root(MODEL, Optional.of("x4:salt"), none),
                        root(new ModelFingerprint("tiny", "0123abce"), none, none)))
                .doesNotHaveDuplicates();
        assertThat(root(new ModelFingerprint("other name", "0123abcd"), x, x)).isEqualTo(root(MODEL, x, x));
    }
}
