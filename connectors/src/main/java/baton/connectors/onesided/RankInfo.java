package baton.connectors.onesided;

import baton.kv.GeneratedBuilder;
import baton.kv.KvDigest;
import baton.kv.KvLayout;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.Rank;
import java.util.List;
import java.util.Optional;

/**
 * A rank's description for peers that move its blocks: the answer to a handshake.
 *
 * @param compatibility equal for instances that can exchange blocks. Of an instance of Baton its own, of another vLLM's
 * @param vllmCompatibility any of which vLLM instances must have to exchange blocks with this one, for each version of vLLM; empty if unknown
 * @param model digest of the model's fingerprint
 * @param agent metadata of the rank's transfer agent
 * @param layout of the rank's pool
 * @param modelKvHeads key/value heads of the whole model
 * @param regions where the blocks lie
 * @param layerNames in vLLM's terms, in the order of the regions; empty where the peer does not name them
 * @param interior how a layer's share of a block lies
 * @param pagesPerBlock blocks of {@code layout} for one that a reference names: vLLM's kernel blocks for one of its cache manager
 * @param blocks of {@code layout} in the pool
 * @param checksums the rank's {@link BlockChecksums}, if it has any
 * @param incarnation of the instance, if it signs references; a vLLM peer does not
 */
@GeneratedBuilder
public record RankInfo(
        String engineId,
        String compatibility,
        List<String> vllmCompatibility,
        String model,
        Rank rank,
        int tensorParallelSize,
        int pipelineParallelSize,
        byte[] agent,
        KvLayout layout,
        int modelKvHeads,
        LayerRegions regions,
        List<String> layerNames,
        BlockInterior interior,
        int pagesPerBlock,
        int blocks,
        Optional<BlockChecksums.Table> checksums,
        Optional<Incarnation> incarnation)
        implements HandshakeMetadata, RankInfoBuilder.With {
    public RankInfo {
        vllmCompatibility = List.copyOf(vllmCompatibility);
    }

    /** The kind of its checksums. */
    public KvDigest digest() {
        return checksums.map(BlockChecksums.Table::kind).orElse(KvDigest.NONE);
    }

    PoolGeometry geometry() {
        return geometry(rank.tensor());
    }

    /** The geometry for a peer that writes: vLLM packs received blocks by itself. */
    PoolGeometry geometryToWrite() {
        PoolGeometry own = geometry();
        return interior.isPacked()
                ? new PoolGeometry(layout, own.firstHead(), blocks, regions, BlockInterior.HEADS)
                : own;
    }

    /** The geometry of another tensor rank of the instance, but for the address, which is this rank's. */
    PoolGeometry geometry(int tensor) {
        int firstHead = (int) ((long) tensor * modelKvHeads / tensorParallelSize);
        return new PoolGeometry(layout, firstHead, blocks, regions, interior);
    }
}
