package baton.store.redis;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class RedisSettingsTest {
    private static RedisSettings parse(String json) {
        return RedisSettings.of(JsonFields.parse("tiers[1]", json.replace('\'', '"')));
    }

    @Test
    void settingsAreReadFromJson() {
        RedisSettings settings = parse("{'url': 'rediss://u:p@host:7000/2', 'prefix': 'p', 'ttl_seconds': 1.5,"
                + " 'connections': 4, 'connect_timeout_seconds': 3, 'max_bytes_in_flight': 1e6}");
        assertThat(settings.ttl()).contains(Duration.ofMillis(1500));
        assertThat(settings.prefix()).isEqualTo("p");
        assertThat(settings.limits().connections()).isEqualTo(4);
        assertThat(settings.limits().connectTimeout()).isEqualTo(Duration.ofSeconds(3));
        assertThat(settings.limits().maxBytesInFlight()).isEqualTo(1_000_000);
        assertThat(settings.server()).isEqualTo("rediss://host:7000");
        assertThat(parse("{'url': 'valkey://host'}")).isEqualTo(RedisSettings.of("valkey://host"));
        assertThat(RedisSettings.of("valkeys://host").tls()).isTrue();
        assertThat(RedisSettings.of("valkey://host").tls()).isFalse();
    }

    @Test
    void theUrlHasCredentialsPortAndDatabase() {
        assertThat(RedisSettings.of("redis://host").credentials()).isEmpty();
        assertThat(RedisSettings.of("redis://:p%40w@host").credentials()).containsExactly("p@w");
        assertThat(RedisSettings.of("redis://pw@host").credentials()).containsExactly("pw");
        assertThat(RedisSettings.of("redis://user:p:w@host").credentials()).containsExactly("user", "p:w");
        assertThat(RedisSettings.of("redis://host").port()).isEqualTo(6379);
        assertThat(RedisSettings.of("redis://[::1]:7/").host()).isEqualTo("::1");
        assertThat(RedisSettings.of("redis://host").database()).isZero();
        assertThat(RedisSettings.of("redis://host/3").database()).isEqualTo(3);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "{} | tiers[1].url: is required: redis://host:port or rediss://host:port",
                "{'url': 'http://h'} | tiers[1].url: begins with 'http', must be redis://host:port or rediss://host:port",
                "{'url': 'redis-sentinel://h'} | tiers[1].url: begins with 'redis-sentinel', must be redis://host:port or rediss://host:port",
                "{'url': 'redis:///1'} | tiers[1].url: names no host; must be redis://host:port or rediss://host:port",
                "{'url': 'redis://h?database=2'} | tiers[1].url: has a query, which means nothing here: remove '?' and the text after it",
                "{'url': 'redis://h/x'} | tiers[1].url: has the path '/x', must be a database's number, as /0",
                "{'url': 'redis://h', 'prefix': 'a b'} | tiers[1].prefix: is 'a b', must be printable ASCII without spaces",
                "{'url': 'redis://h', 'ttl_seconds': 0} | tiers[1].ttl_seconds: is 0.0, must be more than 0 and at most 1000000000",
                "{'url': 'redis://h', 'connections': 65} | tiers[1].connections: is 65, must be 1 to 64",
                "{'url': 'redis://h', 'connect_timeout_seconds': -1} | tiers[1].connect_timeout_seconds: is -1.0, must be more than 0 and at most 3600",
                "{'url': 'redis://h', 'max_bytes_in_flight': 0} | tiers[1].max_bytes_in_flight: is 0, must be positive",
                "{'url': 'redis://h', 'ca_certificates': '/none.pem'} | tiers[1].ca_certificates: is /none.pem, which cannot be read"
            })
    void errorsNameTheSetting(String json, String message) {
        assertThatThrownBy(() -> parse(json))
                .isInstanceOf(ConfigException.class)
                .hasMessage(message);
    }

    @Test
    void noTextContainsThePassword() {
        assertThat(RedisSettings.of("redis://user:secret@host").toString()).doesNotContain("secret");
        for (String url : List.of(
                "redis://user:secret@",
                "redis://user:secret@ho st",
                "redis://user:secret@h/x",
                "x://user:secret@h",
                "redis://user:secret@host:port")) {
            assertThatThrownBy(() -> RedisSettings.of(url))
                    .isInstanceOf(ConfigException.class)
                    .message()
                    .doesNotContain("secret");
        }
    }
}
