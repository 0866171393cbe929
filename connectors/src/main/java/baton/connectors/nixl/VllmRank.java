package baton.connectors.nixl;

import baton.connectors.nixl.NixlHandshake.Metadata;
import baton.connectors.nixl.NixlHandshake.Regions;
import baton.connectors.onesided.BlockInterior;
import baton.connectors.onesided.LayerRegions;
import baton.connectors.onesided.RankInfo;
import baton.kv.DType;
import baton.kv.InvalidFieldException;
import baton.kv.KvLayout;
import baton.kv.connector.Rank;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;

/**
 * Reads how a vLLM rank's blocks lie from its handshake. vLLM sends the number of layers, the bytes of a block and its tokens, but not the
 * heads, the head size or the type of elements: these equal this instance's, as the compatibility hash promises.
 *
 * @param layout of this instance's rank; its layers are those that the vLLM rank must have
 * @param modelKvHeads key/value heads of the whole model
 * @param cpuInterior how CPU_ATTN packs blocks on the peer's processor, if the settings say it
 * @param tensorParallelSize of peers with more ranks than heads, if the settings say it: several ranks then have the same head
 */
record VllmRank(
        KvLayout layout, int modelKvHeads, Optional<BlockInterior> cpuInterior, Optional<Integer> tensorParallelSize) {
    static final String MAIN_MEMORY = "DRAM";
    static final String DEVICE_MEMORY = "VRAM";

    static final String CPU_BACKEND = "CPU_ATTN";
    private static final String WHAT = Metadata.WHAT + ".";

    /** @throws InvalidFieldException if its blocks cannot be read */
    RankInfo info(String hash, Metadata metadata, Rank asked) {
        Regions regions = metadata.regions();
        // First, as other layouts have other regions.
        BlockInterior interior = interior(metadata);
        if (regions.count() != layout.layers()) {
            throw wrong(
                    "kv_caches_base_addr",
                    "has " + regions.count() + " regions",
                    layout.layers() + ", one for each layer");
        }
        OptionalInt device = device(metadata);
        regions.groups()
                .filter(groups -> Arrays.stream(groups).anyMatch(group -> group != groups[0]))
                .ifPresent(groups -> {
                    throw wrong("region_group_ids", "is " + Arrays.toString(groups), "one group of layers");
                });
        long length = regions.blockLengths()[0];
        for (int layer = 0; layer < regions.count(); layer++) {
            if (regions.blockLengths()[layer] != length) {
                throw wrong("block_lens", "is " + Arrays.toString(regions.blockLengths()), "of one size");
            }
            if (regions.blockStrides()[layer] < length) {
                throw wrong("block_strides", "is " + Arrays.toString(regions.blockStrides()), "at least block_lens");
            }
        }
        long headBytes = metadata.blockSize() * layout.entryBytes();
        long heads = length / headBytes;
        if (length <= 0 || length % headBytes != 0 || heads > modelKvHeads || modelKvHeads % heads != 0) {
            throw wrong(
                    "block_lens",
                    "is " + length + " bytes for " + metadata.blockSize() + " tokens",
                    headBytes + " bytes for each of the rank's key/value heads, of which the model has "
                            + modelKvHeads);
        }
        // Any number of ranks may have one head each.
        int size = tensorParallelSize
                .filter(ranks -> heads == 1 && ranks % modelKvHeads == 0)
                .orElse(Math.toIntExact(modelKvHeads / heads));
        return new RankInfo(
                metadata.engineId(),
                hash,
                List.of(),
                "",
                asked,
                size,
                1,
                metadata.agent(),
                new KvLayout(
                        layout.layers(),
                        Math.toIntExact(heads),
                        layout.headDim(),
                        metadata.blockSize(),
                        layout.dtype(),
                        layout.latent()),
                modelKvHeads,
                new LayerRegions(regions.baseAddresses(), regions.blockStrides(), device),
                regions.names().orElse(List.of()),
                interior,
                metadata.pagesPerBlock(),
                metadata.blocks(),
                Optional.empty(),
                Optional.empty());
    }

    /**
     * The device that holds a rank's blocks. Transfer agents read it from the agent's metadata.
     *
     * @throws InvalidFieldException if the regions are in memory of several kinds, or of an unknown one
     */
    static OptionalInt device(Metadata metadata) {
        List<String> types = metadata.regions().memoryTypes().orElse(List.of(MAIN_MEMORY)).stream()
                .distinct()
                .toList();
        if (types.equals(List.of(DEVICE_MEMORY))) {
            return OptionalInt.of(metadata.deviceId());
        }
        if (!types.equals(List.of(MAIN_MEMORY))) {
            throw wrong("region_mem_types", "is " + types, MAIN_MEMORY + " or " + DEVICE_MEMORY + " for all regions");
        }
        return OptionalInt.empty();
    }

    private BlockInterior interior(Metadata metadata) {
        if (layout.latent()) {
            return BlockInterior.HEADS;
        }
        BlockInterior plain = switch (metadata.cacheLayout()) {
            case "LBHNC", "BLHNC" -> BlockInterior.HEADS;
            case "LBNHC" -> BlockInterior.TOKENS;
            default -> throw wrong("kv_cache_layout", "is " + metadata.cacheLayout(), "LBHNC, BLHNC or LBNHC");
        };
        if (!metadata.attentionBackend().equals(CPU_BACKEND)) {
            return plain;
        }
        if (layout.dtype() == DType.F8_E4M3) {
            throw wrong("attn_backend_name", "is CPU_ATTN beside a KV cache of fp8", "of a vLLM on a GPU");
        }
        return cpuInterior.orElse(BlockInterior.CPU_UNKNOWN);
    }

    private static InvalidFieldException wrong(String field, String is, String mustBe) {
        return new InvalidFieldException(WHAT + field, is + ", must be " + mustBe);
    }
}
