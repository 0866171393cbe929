package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.List;
import org.junit.jupiter.api.Test;

class JsonObjectArgsTest {
    @Test
    void leavesOtherArgumentsAlone() {
        JsonObjectArgs<KvTransferConfig> parsed = KvTransferConfig.fromArgs(
                List.of("serve", "model", "--port", "8000", "--", "--kv-transfer-config", "{"));

        assertThat(parsed.config()).isEmpty();
        assertThat(parsed.rest())
                .containsExactly("serve", "model", "--port", "8000", "--", "--kv-transfer-config", "{");
    }

    @Test
    void readsTheObjectForm() {
        String json = "{\"kv_connector\": \"X\", \"kv_role\": \"kv_both\"}";
        for (List<String> args : List.of(
                List.of("--kv-transfer-config", json),
                List.of("--kv-transfer-config=" + json),
                List.of("--kv_transfer_config", json))) {
            assertThat(config(args).connector()).contains("X");
            assertThat(config(args).role()).contains(KvRole.BOTH);
        }
    }

    @Test
    void readsDottedForms() {
        JsonObjectArgs<KvTransferConfig> parsed = KvTransferConfig.fromArgs(List.of(
                "serve",
                "--kv-transfer-config.kv_connector",
                "NixlConnector",
                "--kv-transfer-config.kv_role=kv_consumer",
                "--max-num-seqs",
                "4",
                "--kv-transfer-config.engine_id",
                "42",
                "--kv-transfer-config.kv_port",
                "21001",
                "--kv-transfer-config.kv_buffer_size",
                "1e10",
                "--kv-transfer-config.kv_connector_extra_config.a.b",
                "3",
                "--kv-transfer-config.kv_connector_extra_config.a.name",
                "three",
                "--kv-transfer-config.kv_connector_extra_config.backends+",
                "LIBFABRIC",
                "--kv-transfer-config.kv_connector_extra_config.backends+",
                "UCX,4",
                "--kv-transfer-config.kv_connector_extra_config.connectors+",
                "{\"kv_connector\": \"Y\", \"kv_role\": \"kv_both\"}"));
        KvTransferConfig config = parsed.config().orElseThrow();

        assertThat(parsed.rest()).containsExactly("serve", "--max-num-seqs", "4");
        assertThat(config.connector()).contains("NixlConnector");
        assertThat(config.role()).contains(KvRole.CONSUMER);
        assertThat(config.engineId()).isEqualTo("42");
        assertThat(config.port()).isEqualTo(21001);
        assertThat(config.bufferSize()).isEqualTo(10_000_000_000L);
        assertThat(config.extra()).isEqualTo(JsonFields.parse("kv_connector_extra_config", """
                        {"a": {"b": 3, "name": "three"}, "backends": ["LIBFABRIC", "UCX", 4],
                         "connectors": [{"kv_connector": "Y", "kv_role": "kv_both"}]}"""));
    }

    @Test
    void dottedFormsWinOverTheObject() {
        KvTransferConfig config = config(List.of(
                "--kv-transfer-config.kv_role",
                "kv_producer",
                "--kv-transfer-config.kv_connector_extra_config.list+",
                "b",
                "--kv-transfer-config",
                """
                {"kv_connector": "X", "kv_role": "kv_both", "kv_ip": "10.0.0.3",
                 "kv_connector_extra_config": {"kept": 1, "list": ["a"]}}""",
                "--kv-transfer-config.kv_ip",
                "10.0.0.4",
                "--kv-transfer-config.kv_ip",
                "10.0.0.5"));

        assertThat(config.role()).contains(KvRole.PRODUCER);
        assertThat(config.ip()).isEqualTo("10.0.0.5");
        assertThat(config.extra().toJson().toString()).isEqualTo("{\"kept\":1,\"list\":[\"a\",\"b\"]}");
    }

    @Test
    void namesTheError() {
        assertError("--kv-transfer-config: needs a value", "--kv-transfer-config");
        assertError("--kv-transfer-config: must be a JSON object, is [1]", "--kv-transfer-config", "[1]");
        assertError("--kv-transfer-config.a..b: has an empty key between its dots", "--kv-transfer-config.a..b", "1");
        assertError(
                "--kv-transfer-config.kv_port.x: goes into kv_port, which is not an object: 5",
                "--kv-transfer-config.kv_port",
                "5",
                "--kv-transfer-config.kv_port.x",
                "6");
        assertError(
                "--kv-transfer-config.kv_port+: appends to kv_port, which is not a list: 5",
                "--kv-transfer-config.kv_port",
                "5",
                "--kv-transfer-config.kv_port+",
                "6");
        assertError("kv_rol: unknown field; did you mean kv_role?", "--kv-transfer-config.kv_rol", "kv_both");
        assertThatThrownBy(() -> config(List.of("--kv-transfer-config", "{oops")))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("--kv-transfer-config: not valid JSON: ");
    }

    private static void assertError(String message, String... args) {
        assertThatThrownBy(() -> config(List.of(args)))
                .isInstanceOf(ConfigException.class)
                .hasMessage(message);
    }

    private static KvTransferConfig config(List<String> args) {
        return KvTransferConfig.fromArgs(args).config().orElseThrow();
    }
}
