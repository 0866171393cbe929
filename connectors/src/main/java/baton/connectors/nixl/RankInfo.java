package baton.connectors.nixl;

import baton.kv.KvLayout;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.Rank;
import java.util.Optional;
import java.util.OptionalLong;

/**
 * What a peer must know of a rank to move its blocks: the answer to a handshake.
 *
 * @param compatibility equal for instances that can exchange blocks
 * @param agent metadata of the rank's transfer agent
 * @param layout of the rank's pool
 * @param modelKvHeads key/value heads of the whole model
 * @param pool address of the rank's pool
 * @param blocks in the pool
 * @param seals address of the rank's {@link Seals}, if it has any
 * @param life of the instance, if it makes references that can be checked
 */
public record RankInfo(
        String engineId,
        String compatibility,
        Rank rank,
        int tensorParallelSize,
        int pipelineParallelSize,
        byte[] agent,
        KvLayout layout,
        int modelKvHeads,
        long pool,
        int blocks,
        OptionalLong seals,
        Optional<Life> life)
        implements HandshakeMetadata {
    /**
     * One life of an instance.
     *
     * @param epoch tells it from other lives
     * @param key that its references are signed with
     */
    public record Life(String epoch, byte[] key) {}

    RankInfo of(Life own) {
        return new RankInfo(
                engineId,
                compatibility,
                rank,
                tensorParallelSize,
                pipelineParallelSize,
                agent,
                layout,
                modelKvHeads,
                pool,
                blocks,
                seals,
                Optional.of(own));
    }

    /** The same of another rank of the instance, as far as that can be known: its addresses are not. */
    RankInfo at(Rank other) {
        return new RankInfo(
                engineId,
                compatibility,
                other,
                tensorParallelSize,
                pipelineParallelSize,
                agent,
                layout,
                modelKvHeads,
                pool,
                blocks,
                seals,
                life);
    }

    /** The first of the model's heads that the rank has. */
    int firstHead() {
        return (int) ((long) rank.tensor() * modelKvHeads / tensorParallelSize);
    }
}
