package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;

class KvEventsConfigTest {
    @Test
    void defaultsOfKvEventsAreVllms() {
        assertThat(KvEventsConfig.fromJson(JsonFields.empty("kv_events_config"))
                        .toJson()
                        .toString())
                .isEqualTo("{\"enable_kv_cache_events\":false,\"publisher\":\"null\",\"endpoint\":\"tcp://*:5557\","
                        + "\"replay_endpoint\":null,\"buffer_steps\":10000,\"hwm\":100000,\"max_queue_size\":100000,"
                        + "\"topic\":\"\"}");
        assertThat(KvEventsConfig.fromJson(JsonFields.empty("kv_events_config")).publishes())
                .isFalse();
    }

    @Test
    void enabledKvEventsArePublishedUnlessThePublisherIsNull() {
        assertThat(read("{\"enable_kv_cache_events\": true}").publishes()).isTrue();
        assertThat(read("{\"enable_kv_cache_events\": true, \"publisher\": null}")
                        .publishes())
                .isTrue();
        assertThat(read("{\"enable_kv_cache_events\": true, \"publisher\": \"null\"}")
                        .publishes())
                .isFalse();
        assertThat(read("{\"publisher\": \"zmq\"}").publishes()).isFalse();
    }

    @Test
    void theWrittenKvEventsConfigIsReadBackEqual() {
        KvEventsConfig config = read("{\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://[::1]:7\","
                + "\"replay_endpoint\": \"tcp://10.0.0.1:0\", \"buffer_steps\": 3, \"hwm\": 0,"
                + "\"max_queue_size\": 1, \"topic\": \"kv@a\"}");

        assertThat(config.endpoint()).isEqualTo(new ZeroMqEndpoint("::1", 7));
        assertThat(KvEventsConfig.fromJson(JsonFields.of("", config.toJson()))).isEqualTo(config);
    }

    @Test
    void theKvEventsEndpointIsListenedOnOrConnectedToAsVllmDoes() {
        assertThat(read("{\"endpoint\": \"tcp://*:5557\"}").binds()).isTrue();
        assertThat(read("{\"endpoint\": \"tcp://[::]:5557\"}").binds()).isTrue();
        assertThat(read("{\"endpoint\": \"tcp://router.example:5557\"}").binds())
                .isFalse();
    }

    @Test
    void wrongKvEventsFieldsAreNamedWithTheAllowedValues() {
        refuses("{\"enabled\": true}", "kv_events_config.enabled", "known: enable_kv_cache_events, publisher");
        refuses("{\"publisher\": \"kafka\"}", "kv_events_config.publisher", "'kafka'; allowed: null, zmq");
        refuses("{\"endpoint\": \"ipc:///tmp/x\"}", "kv_events_config.endpoint", "'ipc:///tmp/x'", "tcp://HOST:PORT");
        refuses("{\"endpoint\": \"tcp://*:70000\"}", "kv_events_config.endpoint", "0 to 65535");
        refuses("{\"endpoint\": \"tcp://:5557\"}", "kv_events_config.endpoint", "host name");
        refuses("{\"endpoint\": \"tcp://host:0\"}", "kv_events_config.endpoint", "a port to connect to");
        refuses("{\"replay_endpoint\": \"inproc://x\"}", "kv_events_config.replay_endpoint", "TCP");
        refuses("{\"buffer_steps\": -1}", "kv_events_config.buffer_steps", "at least 0");
        refuses("{\"hwm\": \"many\"}", "kv_events_config.hwm", "a whole number", "many");
        refuses("{\"max_queue_size\": 0}", "kv_events_config.max_queue_size", "at least 1");
        refuses("{\"enable_kv_cache_events\": 7}", "kv_events_config.enable_kv_cache_events", "true or false");
    }

    @Test
    void kvEventsArgumentsAreTakenFromTheCommandLineInBothForms() {
        JsonObjectArgs<KvEventsConfig> parsed = KvEventsConfig.fromArgs(List.of(
                "serve",
                "--kv-events-config.topic",
                "42",
                "--kv_events_config={\"enable_kv_cache_events\": true, \"topic\": \"a\"}",
                "--kv-events-config.replay_endpoint=tcp://*:5558",
                "--port",
                "1"));

        assertThat(parsed.rest()).containsExactly("serve", "--port", "1");
        KvEventsConfig config = parsed.config().orElseThrow();
        assertThat(config.publishes()).isTrue();
        assertThat(config.topic()).isEqualTo("42");
        assertThat(config.replayEndpoint()).isEqualTo(Optional.of(new ZeroMqEndpoint("*", 5558)));
        assertThat(KvEventsConfig.fromArgs(List.of("serve")).config()).isEmpty();
    }

    private static KvEventsConfig read(String json) {
        return KvEventsConfig.fromJson(JsonFields.parse("kv_events_config", json));
    }

    private static void refuses(String json, String field, String... parts) {
        assertThatThrownBy(() -> read(json))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining(field)
                .satisfies(e -> assertThat(e.getMessage()).contains(parts));
    }
}
