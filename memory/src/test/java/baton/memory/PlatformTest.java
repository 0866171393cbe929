package baton.memory;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class PlatformTest {
    @ParameterizedTest
    @CsvSource({
        "Linux, amd64, linux-x86_64, true, false, true",
        "Linux, aarch64, linux-arm64, true, false, false",
        "Mac OS X, aarch64, macosx-arm64, false, true, false",
        "Mac OS X, x86_64, macosx-x86_64, false, true, true",
        "Windows 11, amd64, windows 11-x86_64, false, false, true"
    })
    void theJvmsNamesOfSystemsAndProcessorsAreUnderstood(
            String name, String arch, String text, boolean linux, boolean mac, boolean x86) {
        Platform platform = Platform.of(name, arch);
        assertThat(platform).hasToString(text);
        assertThat(platform.isLinux()).isEqualTo(linux);
        assertThat(platform.isMacOs()).isEqualTo(mac);
        assertThat(platform.isX86()).isEqualTo(x86);
    }

    @Test
    void aPlatformIsParsedFromItsOwnText() {
        assertThat(Platform.parse("macosx-arm64")).isEqualTo(Platform.of("Mac OS X", "aarch64"));
        assertThat(Platform.parse("linux-x86_64")).isEqualTo(Platform.of("Linux", "amd64"));
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "mac", "-arm64", "macosx-", "a-b-c"})
    void anUnknownPlatformIsAnErrorThatNamesIt(String wrong) {
        assertThatThrownBy(() -> Platform.parse(wrong))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessageContaining("baton.platform=" + wrong + " must be");
    }
}
