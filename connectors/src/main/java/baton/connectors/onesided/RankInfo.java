package baton.connectors.onesided;

import baton.kv.KvLayout;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.Rank;
import java.util.Optional;
import java.util.OptionalLong;

/**
 * What a peer must know of a rank to move its blocks: the answer to a handshake.
 *
 * @param compatibility equal for instances that can exchange blocks
 * @param model digest of the model's fingerprint
 * @param agent metadata of the rank's transfer agent
 * @param layout of the rank's pool
 * @param modelKvHeads key/value heads of the whole model
 * @param pool address of the rank's pool
 * @param blocks in the pool
 * @param checksums address of the rank's {@link BlockChecksums}, if it has any
 * @param incarnation of the instance, if it signs references; a vLLM peer does not
 */
public record RankInfo(
        String engineId,
        String compatibility,
        String model,
        Rank rank,
        int tensorParallelSize,
        int pipelineParallelSize,
        byte[] agent,
        KvLayout layout,
        int modelKvHeads,
        long pool,
        int blocks,
        OptionalLong checksums,
        Optional<Incarnation> incarnation)
        implements HandshakeMetadata {

    /** The same with another incarnation, or none. */
    public RankInfo with(Optional<Incarnation> other) {
        return new RankInfo(
                engineId,
                compatibility,
                model,
                rank,
                tensorParallelSize,
                pipelineParallelSize,
                agent,
                layout,
                modelKvHeads,
                pool,
                blocks,
                checksums,
                other);
    }

    PoolGeometry geometry() {
        return geometry(rank.tensor());
    }

    /** The geometry of another tensor rank of the instance, but for the address, which is this rank's. */
    PoolGeometry geometry(int tensor) {
        int firstHead = (int) ((long) tensor * modelKvHeads / tensorParallelSize);
        return new PoolGeometry(layout, firstHead, blocks, pool);
    }
}
