package baton.connectors.nixl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.connectors.nixl.NixlHandshake.Metadata;
import baton.connectors.nixl.NixlHandshake.Payload;
import baton.connectors.nixl.NixlHandshake.Regions;
import baton.connectors.onesided.BlockInterior;
import baton.connectors.onesided.RankInfo;
import baton.connectors.onesided.TransferMode;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.kv.KvLayout;
import baton.kv.connector.Rank;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * The handshake beside the answer of a real vLLM 0.32.0 on a CPU, serving tiny-ledger in fp32 with blocks of 32 tokens. {@code
 * record_handshake.py} made {@code handshake-cpu.json}; it is run with the Python that vLLM is installed in.
 */
@Timeout(300)
class VllmContractTest {
    private static final KvLayout MODEL = new KvLayout(6, 4, 32, 32, DType.F32);
    private static final VllmRank READER = new VllmRank(MODEL, 4, Optional.of(BlockInterior.CPU_VEC), Optional.empty());

    private static JsonFields recorded() {
        try (InputStream file = VllmContractTest.class.getResourceAsStream("handshake-cpu.json")) {
            return JsonFields.parse("recorded", new String(file.readAllBytes(), StandardCharsets.UTF_8));
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }

    static byte[] recorded(String name) {
        return HexFormat.of().parseHex(recorded().string(name).orElseThrow());
    }

    private static Metadata metadata() {
        return Metadata.read(Payload.read(recorded("payload")).metadata());
    }

    @Test
    void theQuestionIsVllms() {
        assertThat(NixlHandshake.question(Rank.FIRST)).isEqualTo(recorded("question"));
    }

    @Test
    void aDecodedAnswerIsEncodedAsTheSameBytes() {
        Payload payload = Payload.read(recorded("payload"));
        Metadata read = Metadata.read(payload.metadata());
        // A map of 21 entries has no field of Baton's.
        assertThat(new Payload(payload.compatibilityHash(), read.encode()).encode())
                .isEqualTo(recorded("payload"));
        assertThat(NixlHandshake.readClock(recorded("clock"))).isPositive();
    }

    @Test
    void aRanksBlocksAreWhereItsRegionsSay() {
        Regions regions = metadata().regions();
        RankInfo info = NixlHandshake.read(recorded("payload"), Rank.FIRST, Optional.empty(), READER);
        assertThat(info.layout()).isEqualTo(MODEL);
        assertThat(info.tensorParallelSize()).isEqualTo(1);
        assertThat(info.interior()).isEqualTo(BlockInterior.CPU_VEC);
        assertThat(info.incarnation()).isEmpty();
        assertThat(info.checksums()).isEmpty();
        assertThat(info.layerNames()).hasSize(6).first().isEqualTo("model.layers.0.self_attn.attn");
        assertThat(info.regions().addresses()).isEqualTo(regions.baseAddresses());
        assertThat(info.regions().strides()).containsOnly(MODEL.layerBytes());
    }

    @Test
    void theHashIsVllms() {
        JsonFields compat = JsonFields.parse(
                "vllm_compat",
                "{\"version\": \"0.32.0\", \"model\": \"tiny-ledger\", \"attn_backend_name\": \"CPU_ATTN\"}");
        assertThat(VllmCompatibility.of(compat).hashes(MODEL, TransferMode.PULL))
                .containsExactly(Payload.read(recorded("payload")).compatibilityHash());
    }

    /** The hashes of a program that computes them from vLLM's factors, for Qwen3 0.6B in bf16. */
    @ParameterizedTest
    @CsvSource({
        "FLASH_ATTN, 0.32.0, 0d8bcc51e1e288732ae02b79347ae4cb0b56f8e15f7e7da0e6172f14059830bf",
        "CPU_ATTN, 0.32.0, 95eb740ee4a431d32afa26728aa02fee7cd769db0126b3e217e7e10c14c5aaad",
        "FLASH_ATTN, 0.33.0, cde24c489ad71bfdbccb1b829551f03719b0fe359a22fe635ec9986a6f36e549",
        "CPU_ATTN, 0.33.0, bf0e6c758bc8025c4997e7de7d9b0dc192209d2ee168e8cc8083a8df1866b696",
        "CPU_ATTN, 0.33.0+cpu, 808a149abf7d6fa30fa79cde6b844c2c32af83ddf8dbb82c9f74d93bfd3fe191"
    })
    void eachVersionHasItsHash(String backend, String version, String hash) {
        KvLayout qwen = new KvLayout(28, 8, 128, 16, DType.BF16);
        String others = "\"model\": \"Qwen/Qwen3-0.6B\", \"attn_backend_name\": \"" + backend + "\"}";
        assertThat(VllmCompatibility.of(JsonFields.parse("vllm_compat", "{\"version\": \"" + version + "\", " + others))
                        .hashes(qwen, TransferMode.PULL))
                .containsExactly(hash);
        assertThat(VllmCompatibility.of(JsonFields.parse(
                                "vllm_compat", "{\"version\": [\"0.31.0\", \"" + version + "\"], " + others))
                        .hashes(qwen, TransferMode.PULL))
                .hasSize(2)
                .endsWith(hash);
    }

    @Test
    void textOfTheHashIsEscapedAsInPython() {
        JsonFields compat = JsonFields.parse(
                "vllm_compat",
                "{\"version\": \"1\", \"model\": \"a\\\"\\u00e9\\\\\\ud83d\\ude00\\u007f\", \"attn_backend_name\": \"X\"}");
        // hashlib.sha256(json.dumps(factors, sort_keys=True).encode())
        assertThat(VllmCompatibility.of(compat).hashes(MODEL, TransferMode.PUSH))
                .containsExactly("5856c7f73a69fae9d933ab9d6d9fe3be54d2d175c397c682bc674c4cd2dddbaa");
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            value = {
                "F8_E4M3 | 2 | | vllm_compat.dtype: is missing beside a KV cache of fp8; dtype and cache_dtype must be vLLM's",
                "F8_E4M3 | 2 | \"dtype\": \"bfloat16\" | vllm_compat.cache_dtype: is missing beside a KV cache of fp8",
                "F8_E4M3 | 2 | \"dtype\": \"bfloat16\", \"cache_dtype\": \"fp8\" |",
                "F8_E4M3 | 2 | \"dtype\": \"bfloat16\", \"cache_dtype\": \"fp8\", \"attn_backend_name\": \"CPU_ATTN\" | vllm_compat.attn_backend_name: is CPU_ATTN beside a KV cache of fp8",
                "BF16 | 1 | | vllm_compat.num_kv_heads: is missing; must be num_key_value_heads of config.json",
                "BF16 | 1 | \"num_kv_heads\": 16 |",
            })
    void factorsWithoutADefaultAreNamed(DType cache, int heads, @Nullable String fields, @Nullable String message) {
        VllmCompatibility compat = VllmCompatibility.of(JsonFields.parse(
                "vllm_compat",
                "{\"version\": \"1\", \"model\": \"m\"%s%s}"
                        .formatted(
                                fields == null ? "" : ", " + fields,
                                fields != null && fields.contains("attn_backend_name")
                                        ? ""
                                        : ", \"attn_backend_name\": \"X\"")));
        KvLayout layout = new KvLayout(2, heads, 64, 16, cache, heads == 1);
        if (message == null) {
            assertThat(compat.hashes(layout, TransferMode.PULL))
                    .singleElement()
                    .asString()
                    .hasSize(64);
        } else {
            assertThatThrownBy(() -> compat.hashes(layout, TransferMode.PULL))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageContaining(message);
        }
    }

    @Test
    void factorsThatAreMissingOrUnknownAreNamed() {
        assertThatThrownBy(() -> VllmCompatibility.of(
                        JsonFields.parse("extra.vllm_compat", "{\"version\": \"0.32.0\", \"model\": \"m\"}")))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("extra.vllm_compat.attn_backend_name");
        assertThatThrownBy(() ->
                        VllmCompatibility.of(JsonFields.parse("extra.vllm_compat", "{\"vllm_version\": \"0.32.0\"}")))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("extra.vllm_compat.vllm_version");
    }

    @ParameterizedTest
    @CsvSource({"LBHNC, HEADS", "BLHNC, HEADS", "LBNHC, TOKENS"})
    void layoutsOfOtherBackendsAreRecognized(String layout, BlockInterior interior) {
        assertThat(READER.info("", with(metadata(), layout, "FLASH_ATTN", regions(2)), new Rank(0, 1)))
                .satisfies(info -> {
                    assertThat(info.interior()).isEqualTo(interior);
                    assertThat(info.tensorParallelSize()).isEqualTo(2);
                    assertThat(info.layout()).isEqualTo(new KvLayout(6, 2, 32, 32, DType.F32));
                });
    }

    @Test
    void cpuBlocksAreOfAnUnknownOrderUnlessTheSettingsTellIt() {
        VllmRank reader = new VllmRank(MODEL, 4, Optional.empty(), Optional.empty());
        assertThat(reader.info("", metadata(), Rank.FIRST).interior()).isEqualTo(BlockInterior.CPU_UNKNOWN);
    }

    /** An entry of a latent with 64 elements has as many bytes as a key and a value of 32. */
    @ParameterizedTest
    @CsvSource({"1, 1, 1, 1", "1, 2, 1, 2", "1, 2, 4, 4", "1, 8, 4, 8", "1, 6, 4, 4", "2, 8, 4, 2"})
    void ranksWithTheSameHeadsAreAsManyAsTheSettingsTell(int heads, int told, int modelHeads, int size) {
        KvLayout layout = modelHeads == 1 ? new KvLayout(6, 1, 64, 32, DType.F32, true) : MODEL;
        VllmRank reader = new VllmRank(layout, modelHeads, Optional.empty(), Optional.of(told));
        RankInfo info = reader.info("", with(metadata(), "LBHNC", "FLASH_ATTN", regions(heads)), Rank.FIRST);
        assertThat(info.tensorParallelSize()).isEqualTo(size);
        assertThat(info.layout().latent()).isEqualTo(modelHeads == 1);
    }

    @Test
    void blocksThatCannotBeReadAreRefusedByName() {
        Metadata good = metadata();
        refused(with(good, "LHBNC", "FLASH_ATTN", good.regions()), "kv_cache_layout: is LHBNC, must be LBHNC");
        KvLayout fp8 = new KvLayout(6, 4, 32, 32, DType.F8_E4M3);
        assertThatThrownBy(() -> new VllmRank(fp8, 4, Optional.of(BlockInterior.CPU_VEC), Optional.empty())
                        .info("", good, Rank.FIRST))
                .hasMessageContaining(
                        "attn_backend_name: is CPU_ATTN beside a KV cache of fp8, must be of a vLLM on a GPU");
        refused(
                with(good, "LBHNC", "FLASH_ATTN", regions(3)),
                "block_lens: is 24576 bytes for 32 tokens, must be 8192");
        refused(
                with(good, "LBHNC", "FLASH_ATTN", regions(8)),
                "block_lens: is 65536 bytes for 32 tokens, must be 8192");
        Regions own = good.regions();
        refused(
                with(good, "LBHNC", "FLASH_ATTN", in(List.of("VRAM", "VRAM", "VRAM", "DRAM", "VRAM", "VRAM"))),
                "region_mem_types: is [VRAM, DRAM], must be DRAM or VRAM for all regions");
        refused(
                with(good, "LBHNC", "FLASH_ATTN", in(Collections.nCopies(6, "FILE"))),
                "region_mem_types: is [FILE], must be DRAM or VRAM for all regions");
        Regions groups = new Regions(
                own.baseAddresses(),
                own.blockLengths(),
                own.blockStrides(),
                own.names(),
                own.memoryTypes(),
                Optional.of(new int[] {0, 1, 0, 1, 0, 1}));
        refused(with(good, "LBHNC", "FLASH_ATTN", groups), "region_group_ids: is [0, 1, 0, 1, 0, 1]");
        Regions few = new Regions(
                new long[] {1}, new long[] {1}, new long[] {1}, Optional.empty(), Optional.empty(), Optional.empty());
        refused(with(good, "LBHNC", "FLASH_ATTN", few), "kv_caches_base_addr: has 1 regions, must be 6");
    }

    private static Regions in(List<String> memoryTypes) {
        Regions own = metadata().regions();
        return new Regions(
                own.baseAddresses(),
                own.blockLengths(),
                own.blockStrides(),
                own.names(),
                Optional.of(memoryTypes),
                own.groups());
    }

    @Test
    void blocksOfAGpuAreOfItsDevice() {
        RankInfo info = READER.info(
                "", with(metadata(), "LBHNC", "FLASH_ATTN", in(Collections.nCopies(6, "VRAM"))), Rank.FIRST);
        assertThat(info.regions().device()).hasValue(metadata().deviceId());
        assertThat(info.regions().addresses()).isEqualTo(metadata().regions().baseAddresses());
        assertThat(READER.info("", metadata(), Rank.FIRST).regions().device()).isEmpty();
    }

    private static void refused(Metadata metadata, String words) {
        assertThatThrownBy(() -> READER.info("", metadata, Rank.FIRST))
                .isInstanceOf(InvalidFieldException.class)
                .hasMessageContaining("NixlAgentMetadata." + words);
    }

    /** The regions of blocks with {@code heads} heads. */
    private static Regions regions(int heads) {
        Regions own = metadata().regions();
        long[] lengths = new long[own.count()];
        Arrays.fill(lengths, heads * MODEL.headBytes());
        return new Regions(own.baseAddresses(), lengths, lengths, own.names(), own.memoryTypes(), own.groups());
    }

    private static Metadata with(Metadata metadata, String layout, String backend, Regions regions) {
        return new Metadata(
                metadata.engineId(),
                metadata.agent(),
                metadata.deviceId(),
                metadata.blocks(),
                layout,
                metadata.blockSize(),
                backend,
                metadata.pagesPerBlock(),
                regions,
                metadata.baton());
    }
}
