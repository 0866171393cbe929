package baton.router.policy;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class SplitPromptsTest {
    @ParameterizedTest
    @CsvSource({
        // setting, bytes of the prompt, requests at prefill, bytes at decode, share
        "off,  8000, 9,     0, 1",
        "0.5,  8000, 0,     0, 0.5",
        "0.5,   100, 0, 90000, 0.5",
        "auto, 8000, 0,     0, 1",
        "auto, 1000, 9,     0, 1",
        "auto, 8000, 1,  8000, 0.5",
        "auto, 8000, 1, 12000, 0.75",
        "auto, 8000, 1, 16000, 1",
        "auto, 8000, 3, 80000, 1",
        "auto, 8000, 1,     0, 0.25",
        "auto, 8000, 9,  8000, 0.25",
        "auto, 8000, 4, 32000, 0.5",
    })
    void theShareFollowsBothQueues(String setting, int promptBytes, int ahead, long besideBytes, double share) {
        assertThat(SplitPrompts.parse(setting).share(promptBytes, ahead, besideBytes))
                .isEqualTo(share);
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "on", "0", "1", "-0.5", "1.5", "NaN", "half"})
    void otherSettingsAreRefused(String setting) {
        assertThatThrownBy(() -> SplitPrompts.parse(setting))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("split prompts")
                .hasMessageContaining("off, auto");
    }
}
