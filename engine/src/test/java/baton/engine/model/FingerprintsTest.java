package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;

import java.nio.file.Path;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Instances of different versions hand over to each other only if both give a checkpoint the same fingerprint. */
class FingerprintsTest {
    @ParameterizedTest
    @CsvSource({
        "llama-biases, 6e254b81f5a74e1f7df0ea48790db79b6778df27b5413269481c05c3e6ccc257",
        "llama2, 927948e49c754de0ad793beeded237be8e6f3189cbdd386c20331ed9bd27b88c",
        "llama3, 778de174eb27e02d05adcce14afb78759246ae0639e091dbae9305dfeca7107c",
        "mistral, 6514623b3e8bf37c22a6eb21f78f3c3e04e780e52ffc1bb535b99bb343114d27",
        "qwen2, f4e530de7c2e652045ea6696253fd3d2d315ecfc1a847e904b3e59d35b5ef799",
        "qwen2-yarn, 853ba362ee9e4f2fca5962afd245e1e9fe94f66ca2f0806c54961d687855f658",
        "qwen3, a067a74f0c288a4af21be990f82220419e8b56649f889663afcaffd18e59d056",
        "qwen3-layers, 5bdbaca8ccfcf3037deb45b0b3850858118fcab14e9a27e6c7a6c078211baaa9",
        "gemma2, bbff35cdc54e0137b2da4315050d7749c5f68b232baa6acbba3a03a99b3d94e3",
        "gemma3, 955272d94ff937656c4b91664dddb39b3f81454f76c67d8795b09bae42b36bda",
        "granite, 40052a18a5cf0c423e33a0ce136987a485b4ae663f3e1bef343c7fe3028eec65",
        "phi3, 9ca7199d3d03f34c985a3ae1a03dddab95d7205bf3d95be2cd5e52d713d11728",
        "smollm3, 95fd935e1edbb610eb505adef3dbee2b88c8bc67d43f1fd75531bee4f0c6a1b3",
        "olmo2, ebe0ac7ca152b565d77c6c919748b41e219aafb5b039ca9c5eae61ecbcc6b07f",
        "qwen3-moe, 986847d559071207aff4802fe78dc8efaf72aab597717328833cb35857ba4db1",
        "qwen2-moe, 61c66353cf89fee8e23a4956d92e7234a23a157afeae2d35605396438727a6db",
        "mixtral, a8d3258fcfc1ab307d19c1dceb0c9f63849493111bee2a9c5d43a4f3a3f8aab3",
        "glm, 194c9891fa15736f4c4bf3d5924c38ff722e2e8130c5aa2c1fa32f002c03e5b3",
        "glm4, 936f57b00e80a46b872e717d55cb8017a7e7bdeea1a7909f1d7a0277f4d8c2af",
        "phi3-long, 327c6d91b0215d08224eaf01e8d2e47bb3bf9c1f49faa8224ce64b521214519e",
        "phi3-short, 9ed31a4eb6a4630839856ad3fcf149f17ab588db2433534ff5c4e17108868b94",
        "deepseek-v2, fd7a478111bda6083c41694b955e12cf6b6fb5b08d2e35fd6082c768060a1f12",
        "deepseek-v2-lite, 57aa04b5a0aed94dd2778920c247cf3601f3329f85a627d30ed40bf8de044fa0",
        "deepseek-v3, 873ed7ab6e04845002c9c67ce4ef0630104bd886b9e60d9c950b8aa41d953165",
        "qwen3-fp8, 5fc4673ce53c0854d804b661b62e589e7393e0959274f3d5487e3ad953b6d1c7",
        "deepseek-v3-fp8, 519a5ecdcd9b8ac7b78b28356a3ec3f74c204b6cd5225bca07517f8325ccb607",
        "llama-fp8, 59f8f11e7bbee6e2200c17dc68a867b8eeed78c8cb929d0c3b44b3acf61c453b",
        "olmo3, e691425a80373ee99770795c65e07707b81cdab81dfc21e6bb537325dee7ee74",
        "granite-hybrid, 804f97937e5f185620572e9d0fdddf50da947af4ef3e4c8c749c07472b1c0a67",
        "ministral, 89bec2ec69362d3e210d81e80c9fbe061c74e92c55219a3ce5a631ae5fc7080a",
        "gemma3-vision, d87df0c87b72384d809409c8e38b735b643463d61397d8a1212bcd5f78babf0f",
        "gpt-oss, 100a9526c0f006291392a68be14fba0ab4cbc25d5954d55aa4794fab6602c43c",
        "gpt-oss-bf16, 1b330b89ec902888d434ad3ec8e92894ff9a59050170421ba9e4f2f58c64bdc0",
        "starcoder2, b01e9a9f2f594a804160b13bf400779f46b5e69ccdf90ebbcd2242c5a11cc9fa",
        "nemotron, 464dcfd4dd6978c7eed64c468774d8a5a29fed89e4d12e651be208489b30154a",
        "tiny-ledger, d3c127668fa6922e9b034317a0eb615f4a5d67671e350f9bde689741321a0238"
    })
    void fingerprintsStayTheSame(String name, String digest) throws Exception {
        Path directory = name.equals("tiny-ledger") ? Golden.TINY_LEDGER : FamiliesTest.checkpoint(name);
        try (Checkpoint checkpoint = Checkpoint.open(directory)) {
            assertThat(checkpoint.fingerprint().digest()).isEqualTo(digest);
        }
    }
}
