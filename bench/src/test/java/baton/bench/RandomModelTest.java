package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.model.ModelConfig;
import baton.engine.text.Tokenizer;
import baton.kv.DType;
import java.time.Duration;
import java.util.Arrays;
import java.util.Optional;
import org.junit.jupiter.api.Test;

class RandomModelTest {
    /** The tokenizer lets an instance warm up, and answer programs that send text. */
    @Test
    void itsTokenizerEncodesAnyText() throws Exception {
        ModelConfig config = new ModelConfig(
                "random", 400, 16, 32, 1, 2, 1, 8, 128, 1e-5, 10000, Optional.empty(), true, DType.BF16);
        String text = "A ledger, \u00fcber \u20ac 5\n\t\u0000\u00ad\u007f";
        int[] ids = RandomModel.with(config, Duration.ofMinutes(1), _ -> {}, directory -> {
            try (Tokenizer tokenizer = Tokenizer.load(directory)) {
                int[] encoded = tokenizer.encode(text, false);
                assertThat(tokenizer.decode(encoded, false)).isEqualTo(text);
                return encoded;
            }
        });
        assertThat(Arrays.stream(ids)).hasSizeGreaterThan(10).allMatch(id -> id >= 0 && id < 400);
    }
}
