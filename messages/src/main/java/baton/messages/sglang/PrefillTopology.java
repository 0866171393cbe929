package baton.messages.sglang;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.Optional;
import tools.jackson.databind.node.ObjectNode;

/**
 * The ranks of a prefill instance and its cache: the answer to {@code GET /route} with -1 for all ranks, SGLang's
 * {@code PrefillServerInfo} (sglang/srt/disaggregation/common/conn.py). Other fields are skipped.
 *
 * @param dpSize instances that share the registry
 * @param pageSize tokens of a page
 * @param dtype {@code kv_cache_dtype}: a type's name, or {@code auto}
 * @param followsRoom the instance of a request has the rank {@code bootstrap_room % dpSize}
 * @param policy {@code decode_allocation_policy}: {@code early} if a decode instance sends where the pages go before the prompt is computed
 */
public record PrefillTopology(
        int tpSize,
        int cpSize,
        int dpSize,
        int ppSize,
        Optional<Integer> pageSize,
        Optional<String> dtype,
        boolean followsRoom,
        String policy) {
    /** The policy that Baton has. */
    public static final String EARLY = "early";

    String toJson() {
        ObjectNode json = JsonFields.empty("route")
                .toJson()
                .put("attn_tp_size", tpSize)
                .put("attn_cp_size", cpSize)
                .put("dp_size", dpSize)
                .put("pp_size", ppSize);
        pageSize.ifPresentOrElse(size -> json.put("page_size", size), () -> json.putNull("page_size"));
        dtype.ifPresentOrElse(name -> json.put("kv_cache_dtype", name), () -> json.putNull("kv_cache_dtype"));
        return json.put("follow_bootstrap_room", followsRoom)
                .put("enable_dsa_cache_layer_split", false)
                .put("decode_allocation_policy", policy)
                .put("enable_kv_cache_sharding", false)
                .toString();
    }

    /** @throws ConfigException if the text is no such answer */
    static PrefillTopology parse(String text) {
        JsonFields json = JsonFields.parse("route", text);
        return new PrefillTopology(
                size(json, "attn_tp_size"),
                size(json, "attn_cp_size"),
                size(json, "dp_size"),
                size(json, "pp_size"),
                json.integerAtLeast("page_size", 1),
                json.string("kv_cache_dtype"),
                json.bool("follow_bootstrap_room").orElse(true),
                json.string("decode_allocation_policy").orElse(EARLY));
    }

    private static int size(JsonFields json, String name) {
        return json.integerAtLeast(name, 1).orElseThrow(() -> new ConfigException(json.field(name), "is missing"));
    }
}
