package baton.store.file;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.store.StoreFormat;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;

class FsPathLayoutTest {
    private static Map<String, Object> vllmFields(String model) {
        Map<String, Object> fields = new HashMap<>();
        fields.put("model_name", model);
        fields.put("tokens_per_hash", 16);
        fields.put("blocks_per_file", 1);
        for (String size : List.of("tp_size", "pp_size", "pcp_size", "dcp_size")) {
            fields.put(size, 1);
        }
        fields.put("dtype", "bfloat16");
        fields.put(
                "kv_cache_groups",
                List.of(Map.of("tokens_per_block", 16, "layer_names", List.of("model.layers.0.self_attn.attn"))));
        fields.put("inference_engine", "vllm");
        return fields;
    }

    /** Digests that vLLM 0.32's FileMapper gives. */
    @Test
    void directoriesOfVllmHaveItsDigests() {
        Map<String, Object> fields = vllmFields("Qwen/Qwen3-0.6B");
        assertThat(FsPathLayout.ofFields(fields).directory()).isEqualTo("Qwen_Qwen3-0.6B_c5aa457ccfe2");
        fields.put("parallel_agnostic", false);
        assertThat(FsPathLayout.ofFields(fields).directory()).isEqualTo("Qwen_Qwen3-0.6B_50fed47cc494");
    }

    /** The digest is of the text that Python's json.dumps writes. */
    @Test
    void directoriesOfVllmWithOddModelNamesHaveItsDigests() {
        assertThat(FsPathLayout.ofFields(vllmFields("模型/\"naïve\"\\ 😀\t")).directory())
                .isEqualTo("模型_\"naïve\"\\ 😀\t_05472d099933");
    }

    @Test
    void aValuesFileIsWhereVllmHasIt() {
        FsPathLayout layout = FsPathLayout.ofFields(vllmFields("Qwen/Qwen3-0.6B"));
        String hash = "0123456789abcdef".repeat(4);
        assertThat(layout.value(Path.of("/kv"), 3, hash, 2))
                .isEqualTo(Path.of("/kv/Qwen_Qwen3-0.6B_c5aa457ccfe2_r3/012/34_g2/" + hash + ".bin"));
        assertThat(FsPathLayout.hash(hash).toString()).isEqualTo(hash);
    }

    @Test
    void eachFormatHasADirectoryOfItsOwn() {
        KvLayout layout = new KvLayout(2, 4, 12, 6, DType.BF16);
        ModelFingerprint model = new ModelFingerprint("org/model", "a1");
        List<StoreFormat> formats = List.of(
                new StoreFormat(model, layout, 2, 1, 1),
                new StoreFormat(new ModelFingerprint("org/model", "a2"), layout, 2, 1, 1),
                new StoreFormat(new ModelFingerprint("org_model", "a1"), layout, 2, 1, 1),
                new StoreFormat(model, layout, 4, 1, 1),
                new StoreFormat(model, layout, 2, 2, 1),
                new StoreFormat(model, layout, 2, 1, 2),
                new StoreFormat(model, layout, 2, 1, 1, 2),
                new StoreFormat(model, new KvLayout(4, 2, 12, 6, DType.BF16), 2, 1, 1),
                new StoreFormat(model, new KvLayout(2, 4, 12, 6, DType.F16), 2, 1, 1),
                new StoreFormat(model, new KvLayout(2, 4, 6, 12, DType.BF16), 2, 1, 1));
        Set<String> directories = new HashSet<>();
        formats.forEach(format -> directories.add(FsPathLayout.of(format).directory()));
        assertThat(directories).hasSameSizeAs(formats).allMatch(name -> name.matches("org_model_[0-9a-f]{12}"));
    }

    @Test
    void namesOfModelsBecomeShortAsciiNames() {
        for (String name : List.of("模型/名", "../../etc", "a".repeat(1000), "nul\0", "", " ")) {
            String directory = FsPathLayout.of(new StoreFormat(
                            new ModelFingerprint(name, "a1"), new KvLayout(2, 4, 12, 6, DType.BF16), 2, 1, 1))
                    .directory();
            assertThat(directory).matches("[A-Za-z0-9._-]{0,160}_[0-9a-f]{12}");
            assertThat(Path.of(directory).normalize().getNameCount()).isEqualTo(1);
        }
    }
}
