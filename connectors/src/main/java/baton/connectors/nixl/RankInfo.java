package baton.connectors.nixl;

import baton.kv.ConfigException;
import baton.kv.KvLayout;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.Rank;
import baton.messages.PeerSecret;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.UUID;

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
 * @param seals address of the rank's {@link BlockChecksums}, if it has any
 * @param life of the instance, if it makes references that can be checked
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
        OptionalLong seals,
        Optional<Life> life)
        implements HandshakeMetadata {
    /**
     * One life of an instance.
     *
     * @param epoch tells it from other lives
     * @param key that its references are signed with
     */
    public record Life(String epoch, byte[] key) {
        private static final int KEY_BYTES = 32;
        private static final int LEAST_KEY_BYTES = 16;

        /** A new one; where there is a secret, its key need not be told. */
        static Life begin(String engineId, Optional<PeerSecret> secret) {
            String epoch = UUID.randomUUID().toString();
            byte[] random = new byte[KEY_BYTES];
            new SecureRandom().nextBytes(random);
            return new Life(
                    epoch, secret.map(known -> key(known, engineId, epoch)).orElse(random));
        }

        private static byte[] key(PeerSecret secret, String engineId, String epoch) {
            return secret.mac(
                    "key of references",
                    engineId.getBytes(StandardCharsets.UTF_8),
                    epoch.getBytes(StandardCharsets.UTF_8));
        }
    }

    RankInfo of(Life own) {
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
                seals,
                Optional.of(own));
    }

    /** The same of another rank of the instance, as far as that can be known: its addresses are not. */
    RankInfo at(Rank other) {
        return new RankInfo(
                engineId,
                compatibility,
                model,
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

    /**
     * As vLLM's handshake has it, with what only Baton's instances tell beside.
     *
     * @param secret from which peers make the key, which is not told then
     */
    byte[] toPayload(Optional<PeerSecret> secret) {
        Life own = life.orElseThrow();
        Handshake.BatonFacts facts = new Handshake.BatonFacts(
                own.epoch(),
                secret.isPresent() ? new byte[0] : own.key(),
                model,
                layout,
                modelKvHeads,
                rank,
                tensorParallelSize,
                pipelineParallelSize,
                seals);
        Handshake.Metadata metadata = new Handshake.Metadata(
                engineId,
                agent,
                new long[] {pool},
                0,
                blocks,
                new long[] {layout.blockBytes()},
                "HND",
                layout.blockSize(),
                "FLASH_ATTN",
                Optional.of(facts));
        return new Handshake.Payload(compatibility, metadata.encode()).encode();
    }

    /**
     * @param secret from which the key is made
     * @throws ConfigException if it is not that, or not of an instance of Baton's
     */
    static RankInfo read(byte[] payload, Optional<PeerSecret> secret) {
        Handshake.Payload read = Handshake.Payload.read(payload);
        Handshake.Metadata metadata = Handshake.Metadata.read(read.metadata());
        Handshake.BatonFacts facts = metadata.baton()
                .orElseThrow(() -> new ConfigException(
                        "NixlAgentMetadata.baton",
                        "is missing: the peer is not an instance of Baton, and how its blocks lie is not known"));
        byte[] key = secret.map(known -> Life.key(known, metadata.engineId(), facts.epoch()))
                .orElse(facts.key());
        if (key.length < Life.LEAST_KEY_BYTES) {
            throw new ConfigException(
                    "NixlAgentMetadata.baton.key",
                    "has " + key.length + " bytes, must have at least " + Life.LEAST_KEY_BYTES);
        }
        return new RankInfo(
                metadata.engineId(),
                read.compatibilityHash(),
                facts.fingerprint(),
                facts.rank(),
                facts.tensorParallelSize(),
                facts.pipelineParallelSize(),
                metadata.agent(),
                facts.layout(),
                facts.modelKvHeads(),
                metadata.baseAddresses()[0],
                metadata.blocks(),
                facts.seals(),
                Optional.of(new Life(facts.epoch(), key)));
    }

    /** The first of the model's heads that the rank has. */
    int firstHead() {
        return (int) ((long) rank.tensor() * modelKvHeads / tensorParallelSize);
    }
}
