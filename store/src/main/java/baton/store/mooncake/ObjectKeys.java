package baton.store.mooncake;

import baton.kv.BlockHash;

/**
 * Names of objects, as vLLM 0.32 makes them (vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store/data.py, {@code PoolKey}):
 * {@code [<prefix>@]<model><namespace>@tp_rank:<r>@pcp0@dcp0@pp_rank:<r>@group:0@<block hash>}.
 *
 * @param prefix {@code cache_prefix}; may be empty
 * @param model last component of the model's name
 * @param namespace of a format of objects, which begins with {@code @}
 */
record ObjectKeys(String prefix, String model, String namespace) {
    /** @param model the whole name */
    static ObjectKeys of(String prefix, String model, String namespace) {
        String name = model;
        while (name.endsWith("/")) {
            name = name.substring(0, name.length() - 1);
        }
        return new ObjectKeys(prefix, name.substring(name.lastIndexOf('/') + 1), namespace);
    }

    /** The beginning of all keys of a share. */
    String of(ObjectLayout.Share share) {
        return (prefix.isEmpty() ? "" : prefix + "@")
                + "%s%s@tp_rank:%d@pcp0@dcp0@pp_rank:%d@group:0@"
                        .formatted(model, namespace, share.tensor(), share.pipeline());
    }

    /** @param start the beginning of all keys of its share */
    static String key(String start, BlockHash hash) {
        return start + hash;
    }
}
