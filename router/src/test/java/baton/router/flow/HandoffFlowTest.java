package baton.router.flow;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import baton.router.upstream.Instance;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class HandoffFlowTest {
    private static final Instance PREFILL = new Instance(Instance.Role.PREFILL, URI.create("http://p:1"));
    private static final Instance DECODE = new Instance(Instance.Role.DECODE, URI.create("http://d:2"));

    private static JsonObjectText parse(String text) {
        return JsonObjectText.parse("body", text.getBytes(StandardCharsets.UTF_8));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "{}|{\"max_tokens\":1,\"stream\":false}",
                "{\"max_tokens\":5,\"stream\":true,\"stream_options\":{}}|{\"max_tokens\":1,\"stream\":false}",
                "{\"max_completion_tokens\":5}|{\"max_completion_tokens\":1,\"max_tokens\":1,\"stream\":false}",
                "{\"min_tokens\":5,\"min_completion_tokens\":5}|{\"max_tokens\":1,\"stream\":false}",
                "{\"n\":4,\"best_of\":8}|{\"n\":1,\"best_of\":1,\"max_tokens\":1,\"stream\":false}",
                "{\"cache_salt\":\"s\",\"messages\":[]}|{\"cache_salt\":\"s\",\"messages\":[],\"max_tokens\":1,\"stream\":false}"
            })
    void prefillLegIsAskedForOneTokenOnly(String body, String prefillBody) {
        HandoffFlow.Handoff handoff = new ContentKeyedFlow().begin(parse(body), "id", PREFILL, DECODE);
        assertThat(handoff.prefillBody().toString()).isEqualTo(prefillBody);
        assertThat(handoff.requestId()).isEqualTo("id");
        assertThat(handoff.decode())
                .isInstanceOfSatisfying(
                        HandoffFlow.AfterPrefill.class,
                        after -> assertThat(after.body().apply(parse("{}")).toString())
                                .isEqualTo(body));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "\"text\"|1",
                "[1,2,3]|1",
                "[]|1",
                "[\"a\"]|1",
                "[[1,2]]|1",
                "[\"a\",\"b\",\"c\"]|3",
                "[[1,[2]],[3]]|2",
                "null|1"
            })
    void promptsAreCounted(String prompt, int count) {
        assertThat(KvTransferParamsFlow.prompts(parse("{\"prompt\":" + prompt + "}")))
                .isEqualTo(count);
    }

    @Test
    void anUnknownFlowIsRefusedByName() {
        assertThat(HandoffFlow.named("content-keyed")).isInstanceOf(ContentKeyedFlow.class);
        assertThat(HandoffFlow.named("kv_transfer_params").name()).isEqualTo("kv_transfer_params");
        assertThatThrownBy(() -> HandoffFlow.named("magic"))
                .isInstanceOf(ConfigException.class)
                .hasMessage(
                        "flow: unsupported value 'magic'; allowed: content-keyed, kv_transfer_params, kv_transfer_params_push, p2p_nccl");
    }
}
