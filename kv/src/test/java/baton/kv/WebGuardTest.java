package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class WebGuardTest {
    private static WebGuard.Verdict judge(WebGuard guard, String host, String... origins) {
        return guard.judge(new WebGuard.Request(
                "POST", true, List.of(host), List.of(origins), Optional.empty(), Optional.empty(), Optional.empty()));
    }

    @Test
    void hostNamesAreCheckedWhereOnlyThisHostConnectsWithoutTls() {
        String foreign = "evil.example";
        for (String loopback : List.of("127.0.0.1", "127.0.1.1", "localhost", "::1")) {
            assertThat(judge(WebGuard.of(loopback, false, List.of()), foreign))
                    .isInstanceOfSatisfying(WebGuard.Verdict.Refused.class, refused -> {
                        assertThat(refused.status()).isEqualTo(403);
                        assertThat(refused.message()).startsWith("Host is 'evil.example', must be localhost");
                    });
            assertThat(judge(WebGuard.of(loopback, true, List.of()), foreign))
                    .isEqualTo(new WebGuard.Verdict.Admitted(Map.of()));
        }
        for (String open : List.of("0.0.0.0", "::", "10.1.2.3")) {
            assertThat(judge(WebGuard.of(open, false, List.of()), foreign))
                    .isEqualTo(new WebGuard.Verdict.Admitted(Map.of()));
        }
    }

    @Test
    void originsAreCheckedWhereverTheServerListens() {
        WebGuard guard = WebGuard.of("0.0.0.0", true, List.of("https://ui.example"));
        assertThat(judge(guard, "server:1", "https://other.example")).isInstanceOf(WebGuard.Verdict.Refused.class);
        assertThat(judge(guard, "server:1", "https://ui.example", "https://other.example"))
                .isInstanceOf(WebGuard.Verdict.Refused.class);
        assertThat(judge(guard, "server:1", "https://server")).isInstanceOf(WebGuard.Verdict.Refused.class);
        assertThat(judge(guard, "server:1", "https://SERVER:1")).isEqualTo(new WebGuard.Verdict.Admitted(Map.of()));
        assertThat(judge(guard, "server:1", "https://ui.example"))
                .isEqualTo(new WebGuard.Verdict.Admitted(
                        Map.of("Access-Control-Allow-Origin", "https://ui.example", "Vary", "Origin")));
    }

    @Test
    void allOriginsAndHostsMayBeAllowed() {
        WebGuard guard = WebGuard.of("127.0.0.1", false, List.of("*"));
        assertThat(judge(guard, "any.example", "null"))
                .isEqualTo(new WebGuard.Verdict.Admitted(Map.of("Access-Control-Allow-Origin", "*", "Vary", "Origin")));
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "ui.example", "https://ui.example/", "https://ui.example/x", "https:", "a b"})
    void anOriginHasASchemeAndAHost(String origin) {
        assertThatThrownBy(() -> WebGuard.of("127.0.0.1", false, List.of(origin)))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("allowed origins: unsupported value '" + origin + "'");
    }
}
