package baton.router.flow;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.router.upstream.Instance;
import java.net.URI;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class AutoFlowTest {
    private static Instance instance(Instance.Role role, String connector) {
        String query = connector.equals("-")
                ? ""
                : "?connector=" + connector.replace("baton:", "").replace("vllm:", "") + "&engine="
                        + connector.substring(0, connector.indexOf(':'));
        return new Instance(role, URI.create("http://" + role.label() + ":1" + query));
    }

    @ParameterizedTest
    @CsvSource({
        "baton:NixlConnector, baton:NixlConnector, kv_transfer_params_push",
        "baton:NixlConnector, vllm:NixlConnector, kv_transfer_params",
        "vllm:NixlConnector, baton:NixlConnector, kv_transfer_params",
        "vllm:NixlConnector, vllm:NixlConnector, kv_transfer_params",
        "vllm:NixlPushConnector, vllm:NixlPushConnector, kv_transfer_params_push",
        "baton:NixlPushConnector, vllm:NixlPushConnector, kv_transfer_params_push",
        "vllm:NixlPushConnector, baton:NixlPushConnector, kv_transfer_params_push",
        "baton:NixlPushConnector, baton:NixlConnector, kv_transfer_params_push",
        "baton:NixlPushConnector, vllm:NixlConnector, -",
        "vllm:NixlConnector, baton:NixlPushConnector, -",
        "baton:MooncakeConnector, vllm:MooncakeConnector, mooncake",
        "baton:MooncakeConnector, vllm:NixlConnector, -",
        "baton:SharedStorageConnector, vllm:ExampleConnector, content-keyed",
        "vllm:ExampleConnector, vllm:ExampleConnector, content-keyed",
        "baton:PyNcclConnector, baton:PyNcclConnector, content-keyed",
        "vllm:LMCacheConnectorV1, vllm:LMCacheConnectorV1, content-keyed",
        "vllm:LMCacheConnectorV1, vllm:ExampleConnector, -",
        "vllm:MultiConnector, vllm:MultiConnector, kv_transfer_params",
        "baton:SglangConnector, baton:SglangConnector, kv_transfer_params",
        // Neither has said where its connector listens.
        "vllm:P2pNcclConnector, vllm:P2pNcclConnector, -",
        "-, vllm:NixlConnector, -",
        "baton:NixlConnector, -, -"
    })
    void aPairsConnectorsDecideItsFlow(String prefill, String decode, String flow) {
        Instance from = instance(Instance.Role.PREFILL, prefill);
        Instance to = instance(Instance.Role.DECODE, decode);
        AutoFlow auto = new AutoFlow();
        assertThat(auto.pairs(from, to)).isEqualTo(!flow.equals("-"));
        assertThat(auto.fits(from, List.of(to))).isEqualTo(!flow.equals("-"));
        if (flow.equals("-")) {
            assertThatThrownBy(() -> auto.flow(from, to)).isInstanceOf(ConfigException.class);
            assertThat(auto.whyNot(to, List.of(from)))
                    .contains(decode.equals("-") ? "its connector is not known" : "fits that of no prefill instance");
        } else {
            assertThat(auto.flow(from, to).name()).isEqualTo(flow);
        }
    }

    /** As one pool after the other is upgraded; Baton's instances are a pair with both. */
    @ParameterizedTest
    @CsvSource({
        "connector=NixlConnector&version=0.32.0, connector=NixlConnector&version=0.33.0, false",
        "connector=NixlConnector&version=0.33.0, connector=NixlConnector&version=0.33.0, true",
        "connector=NixlConnector, connector=NixlConnector&version=0.33.0, true",
        "connector=NixlConnector&version=0.32.0, connector=NixlConnector&engine=baton, true",
        "connector=NixlConnector&engine=baton, connector=NixlConnector&version=0.33.0, true"
    })
    void vllmInstancesOfTwoVersionsAreNoPair(String prefill, String decode, boolean pair) {
        Instance from = new Instance(Instance.Role.PREFILL, URI.create("http://p:1?" + prefill));
        Instance to = new Instance(Instance.Role.DECODE, URI.create("http://d:1?" + decode));
        assertThat(new AutoFlow().pairs(from, to)).isEqualTo(pair);
        if (!pair) {
            assertThat(new AutoFlow().whyNot(to, List.of(from))).contains("NixlConnector of vLLM 0.32.0");
        }
    }

    @Test
    void p2pInstancesAreAPairOnceTheyHaveAddresses() {
        Instance from = new Instance(
                Instance.Role.PREFILL, URI.create("http://p:1?connector=P2pNcclConnector&kv_address=10.0.0.1:14579"));
        Instance to = new Instance(
                Instance.Role.DECODE, URI.create("http://d:1?connector=P2pNcclConnector&kv_address=10.0.0.2:14579"));
        assertThat(new AutoFlow().flow(from, to).name()).isEqualTo("p2p_nccl");
        assertThat(from.isRegistered()).isFalse();
    }
}
