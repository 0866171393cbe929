package baton.connectors.nixl;

import baton.connectors.onesided.Incarnation;
import baton.connectors.onesided.RankInfo;
import baton.kv.DType;
import baton.kv.InvalidFieldException;
import baton.kv.KvLayout;
import baton.kv.connector.Rank;
import baton.messages.MsgpackReader;
import baton.messages.PeerSecret;
import java.io.IOException;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Optional;
import java.util.OptionalLong;
import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;

/**
 * The messages of a handshake, as vLLM's NIXL connector sends them over its side channel (its {@code nixl/metadata.py} and
 * {@code scheduler.py}, connector version 7): a question for one rank, {@code (b"get_meta_msg", pp_rank, tp_rank)}, is answered by two
 * frames, a {@link Payload} and the owner's clock in seconds. vLLM's msgspec writes dataclasses as maps with their fields' names, and
 * skips names that it does not know, as is done here.
 */
final class Handshake {
    private static final byte[] GET_META = "get_meta_msg".getBytes(StandardCharsets.US_ASCII);
    private static final int MOST_RANKS = 65_535;

    private Handshake() {}

    @FunctionalInterface
    private interface Packing {
        void pack(MessageBufferPacker packer) throws IOException;
    }

    /** The question for a rank's metadata. */
    static byte[] question(Rank rank) {
        return pack(packer -> {
            packer.packArrayHeader(3).packBinaryHeader(GET_META.length).writePayload(GET_META);
            packer.packInt(rank.pipeline()).packInt(rank.tensor());
        });
    }

    /** @throws InvalidFieldException if it is not such a question */
    static Rank readQuestion(byte[] message) {
        try (MsgpackReader reader = MsgpackReader.of(message)) {
            int elements = reader.array("question");
            if (elements != 3) {
                throw new InvalidFieldException("question", "has " + elements + " elements, must have 3");
            }
            if (!Arrays.equals(reader.bytes("question's name"), GET_META)) {
                throw new InvalidFieldException("question's name", "must be get_meta_msg");
            }
            int pipeline = reader.integer("pp_rank", 0, MOST_RANKS);
            int tensor = reader.integer("tp_rank", 0, MOST_RANKS);
            reader.end("question");
            return new Rank(pipeline, tensor);
        }
    }

    /** The second frame of an answer: the time of the clock that the owner stamps its blocks' expiry with. */
    static byte[] clock(double seconds) {
        return pack(packer -> packer.packDouble(seconds));
    }

    /** @throws InvalidFieldException if it is not a number */
    static double readClock(byte[] message) {
        try (MsgpackReader reader = MsgpackReader.of(message)) {
            double seconds = reader.number("clock");
            reader.end("clock");
            return seconds;
        }
    }

    /**
     * The first frame of an answer. {@code metadata} may be read only if the hash is the expected one.
     *
     * @param compatibilityHash {@code compatibility_hash}
     * @param metadata {@code agent_metadata_bytes}: {@link Metadata}
     */
    record Payload(String compatibilityHash, byte[] metadata) {
        byte[] encode() {
            return pack(packer -> {
                packer.packMapHeader(2);
                packer.packString("compatibility_hash").packString(compatibilityHash);
                bytes(packer, "agent_metadata_bytes", metadata);
            });
        }

        /** @throws InvalidFieldException if it is no such payload */
        static Payload read(byte[] message) {
            String what = "NixlHandshakePayload";
            Fields fields = new Fields(what);
            Slot<String> hash = fields.slot("compatibility_hash");
            Slot<byte[]> metadata = fields.slot("agent_metadata_bytes");
            MsgpackReader.readFields(what, message, (name, value) -> {
                switch (name) {
                    case "compatibility_hash" -> hash.value = Optional.of(value.text(hash.field));
                    case "agent_metadata_bytes" -> metadata.value = Optional.of(value.bytes(metadata.field));
                    default -> {
                        return false;
                    }
                }
                return true;
            });
            return new Payload(hash.need(), metadata.need());
        }
    }

    /**
     * A rank's metadata: vLLM's {@code NixlAgentMetadata}.
     *
     * @param engineId {@code engine_id}
     * @param agent {@code agent_metadata} of its transfer agent
     * @param baseAddresses {@code kv_caches_base_addr}; Baton has one, the pool's
     * @param deviceId {@code device_id}
     * @param blocks {@code num_blocks} in the pool
     * @param blockLengths {@code block_lens}: bytes of a block, for each base address
     * @param cacheLayout {@code kv_cache_layout}; Baton's is {@code HND}
     * @param blockSize {@code block_size}, tokens
     * @param attentionBackend {@code attn_backend_name}, whose layout the bytes have; Baton's is {@code FLASH_ATTN}
     * @param baton what only Baton's instances tell
     */
    record Metadata(
            String engineId,
            byte[] agent,
            long[] baseAddresses,
            int deviceId,
            int blocks,
            long[] blockLengths,
            String cacheLayout,
            int blockSize,
            String attentionBackend,
            Optional<BatonFacts> baton) {
        private static final String WHAT = "NixlAgentMetadata";

        byte[] encode() {
            return pack(packer -> {
                packer.packMapHeader(baton.isPresent() ? 12 : 11);
                packer.packString("engine_id").packString(engineId);
                Handshake.bytes(packer, "agent_metadata", agent);
                numbers(packer, "kv_caches_base_addr", baseAddresses);
                packer.packString("device_id").packInt(deviceId);
                packer.packString("num_blocks").packInt(blocks);
                numbers(packer, "block_lens", blockLengths);
                packer.packString("kv_cache_layout").packString(cacheLayout);
                packer.packString("block_size").packInt(blockSize);
                packer.packString("ssm_sizes").packArrayHeader(2).packInt(0).packInt(0);
                packer.packString("attn_backend_name").packString(attentionBackend);
                packer.packString("physical_blocks_per_logical_kv_block").packInt(1);
                if (baton.isPresent()) {
                    packer.packString("baton");
                    baton.get().pack(packer);
                }
            });
        }

        /** @throws InvalidFieldException if it is no such metadata; the message names the field */
        static Metadata read(byte[] message) {
            Fields fields = new Fields(WHAT);
            Slot<String> engineId = fields.slot("engine_id");
            Slot<byte[]> agent = fields.slot("agent_metadata");
            Slot<long[]> addresses = fields.slot("kv_caches_base_addr");
            Slot<Integer> device = fields.slot("device_id");
            Slot<Integer> blocks = fields.slot("num_blocks");
            Slot<long[]> lengths = fields.slot("block_lens");
            Slot<String> layout = fields.slot("kv_cache_layout");
            Slot<Integer> blockSize = fields.slot("block_size");
            Slot<String> backend = fields.slot("attn_backend_name");
            Slot<BatonFacts> baton = fields.slot("baton");
            MsgpackReader.readFields(WHAT, message, (name, value) -> {
                switch (name) {
                    case "engine_id" -> engineId.value = Optional.of(value.text(engineId.field));
                    case "agent_metadata" -> agent.value = Optional.of(value.bytes(agent.field));
                    case "kv_caches_base_addr" -> addresses.value = Optional.of(value.unsignedNumbers(addresses.field));
                    case "device_id" -> device.value = Optional.of(value.integer(device.field, -1, MOST_RANKS));
                    case "num_blocks" -> blocks.value = Optional.of(value.integer(blocks.field, 1, Integer.MAX_VALUE));
                    case "block_lens" -> lengths.value = Optional.of(value.unsignedNumbers(lengths.field));
                    case "kv_cache_layout" -> layout.value = Optional.of(value.text(layout.field));
                    case "block_size" -> blockSize.value = Optional.of(value.integer(blockSize.field, 1, 1 << 20));
                    case "attn_backend_name" -> backend.value = Optional.of(value.text(backend.field));
                    case "baton" -> {
                        if (!value.nil(baton.field)) {
                            baton.value = Optional.of(BatonFacts.read(baton.field, value));
                        }
                    }
                    default -> {
                        return false;
                    }
                }
                return true;
            });
            if (addresses.need().length != lengths.need().length) {
                throw new InvalidFieldException(
                        lengths.field,
                        "has " + lengths.need().length + " elements, " + addresses.field + " has "
                                + addresses.need().length + "; must be as many");
            }
            return new Metadata(
                    engineId.need(),
                    agent.need(),
                    addresses.need(),
                    device.need(),
                    blocks.need(),
                    lengths.need(),
                    layout.need(),
                    blockSize.need(),
                    backend.need(),
                    baton.value);
        }
    }

    /**
     * What only Baton's instances tell each other: the field {@code baton}, a map, which vLLM skips.
     *
     * @param epoch {@code epoch} of the instance's {@link Incarnation}
     * @param key {@code key} that its references are signed with; no bytes where peers derive it from their secret
     * @param fingerprint {@code fingerprint}: digest of the model
     * @param layout of the rank's pool: {@code layers}, {@code kv_heads}, {@code head_dim}, {@code block_size}, {@code dtype}
     * @param modelKvHeads {@code model_kv_heads}: key/value heads of the whole model
     * @param rank {@code tp_rank} and {@code pp_rank}
     * @param tensorParallelSize {@code tp_size}
     * @param pipelineParallelSize {@code pp_size}
     * @param checksums {@code seals}: address of the rank's table of checksums, if it has one
     */
    record BatonFacts(
            String epoch,
            byte[] key,
            String fingerprint,
            KvLayout layout,
            int modelKvHeads,
            Rank rank,
            int tensorParallelSize,
            int pipelineParallelSize,
            OptionalLong checksums) {
        private void pack(MessageBufferPacker packer) throws IOException {
            packer.packMapHeader(checksums.isPresent() ? 14 : 13);
            packer.packString("epoch").packString(epoch);
            Handshake.bytes(packer, "key", key);
            packer.packString("fingerprint").packString(fingerprint);
            packer.packString("layers").packInt(layout.layers());
            packer.packString("kv_heads").packInt(layout.kvHeads());
            packer.packString("head_dim").packInt(layout.headDim());
            packer.packString("block_size").packInt(layout.blockSize());
            packer.packString("dtype").packString(layout.dtype().torchName());
            packer.packString("model_kv_heads").packInt(modelKvHeads);
            packer.packString("tp_rank").packInt(rank.tensor());
            packer.packString("pp_rank").packInt(rank.pipeline());
            packer.packString("tp_size").packInt(tensorParallelSize);
            packer.packString("pp_size").packInt(pipelineParallelSize);
            if (checksums.isPresent()) {
                packer.packString("seals");
                unsigned(packer, checksums.getAsLong());
            }
        }

        private static BatonFacts read(String what, MsgpackReader reader) {
            Fields fields = new Fields(what);
            Slot<String> epoch = fields.slot("epoch");
            Slot<byte[]> key = fields.slot("key");
            Slot<String> fingerprint = fields.slot("fingerprint");
            Slot<Integer> layers = fields.slot("layers");
            Slot<Integer> heads = fields.slot("kv_heads");
            Slot<Integer> headDim = fields.slot("head_dim");
            Slot<Integer> blockSize = fields.slot("block_size");
            Slot<DType> dtype = fields.slot("dtype");
            Slot<Integer> modelHeads = fields.slot("model_kv_heads");
            Slot<Integer> tensorRank = fields.slot("tp_rank");
            Slot<Integer> pipelineRank = fields.slot("pp_rank");
            Slot<Integer> tensorSize = fields.slot("tp_size");
            Slot<Integer> pipelineSize = fields.slot("pp_size");
            Slot<Long> checksums = fields.slot("seals");
            reader.fields(what, (name, value) -> {
                switch (name) {
                    case "epoch" -> epoch.value = Optional.of(value.text(epoch.field));
                    case "key" -> key.value = Optional.of(value.bytes(key.field));
                    case "fingerprint" -> fingerprint.value = Optional.of(value.text(fingerprint.field));
                    case "layers" -> layers.value = size(layers, value);
                    case "kv_heads" -> heads.value = size(heads, value);
                    case "head_dim" -> headDim.value = size(headDim, value);
                    case "block_size" -> blockSize.value = size(blockSize, value);
                    case "dtype" -> dtype.value = Optional.of(DType.parse(dtype.field, value.text(dtype.field)));
                    case "model_kv_heads" -> modelHeads.value = size(modelHeads, value);
                    case "tp_rank" -> tensorRank.value = Optional.of(value.integer(tensorRank.field, 0, MOST_RANKS));
                    case "pp_rank" ->
                        pipelineRank.value = Optional.of(value.integer(pipelineRank.field, 0, MOST_RANKS));
                    case "tp_size" -> tensorSize.value = size(tensorSize, value);
                    case "pp_size" -> pipelineSize.value = size(pipelineSize, value);
                    case "seals" -> checksums.value = Optional.of(value.unsigned(checksums.field));
                    default -> {
                        return false;
                    }
                }
                return true;
            });
            return new BatonFacts(
                    epoch.need(),
                    key.need(),
                    fingerprint.need(),
                    new KvLayout(layers.need(), heads.need(), headDim.need(), blockSize.need(), dtype.need()),
                    modelHeads.need(),
                    new Rank(pipelineRank.need(), tensorRank.need()),
                    tensorSize.need(),
                    pipelineSize.need(),
                    checksums.value.map(OptionalLong::of).orElseGet(OptionalLong::empty));
        }

        private static Optional<Integer> size(Slot<Integer> slot, MsgpackReader value) {
            return Optional.of(value.integer(slot.field, 1, MOST_RANKS));
        }
    }

    /**
     * A rank's answer as vLLM's handshake has it, with the field {@code baton} for Baton's instances.
     *
     * @param info of an instance that signs references
     * @param secret from which peers derive the key, which is then not sent
     */
    static byte[] encode(RankInfo info, Optional<PeerSecret> secret) {
        Incarnation own = info.incarnation().orElseThrow();
        BatonFacts facts = new BatonFacts(
                own.epoch(),
                secret.isPresent() ? new byte[0] : own.key(),
                info.model(),
                info.layout(),
                info.modelKvHeads(),
                info.rank(),
                info.tensorParallelSize(),
                info.pipelineParallelSize(),
                info.checksums());
        Metadata metadata = new Metadata(
                info.engineId(),
                info.agent(),
                new long[] {info.pool()},
                0,
                info.blocks(),
                new long[] {info.layout().blockBytes()},
                "HND",
                info.layout().blockSize(),
                "FLASH_ATTN",
                Optional.of(facts));
        return new Payload(info.compatibility(), metadata.encode()).encode();
    }

    /**
     * Reads a rank's answer.
     *
     * @param secret from which the key is derived
     * @throws InvalidFieldException if it is invalid, or not a Baton instance's
     */
    static RankInfo read(byte[] payload, Optional<PeerSecret> secret) {
        Payload read = Payload.read(payload);
        Metadata metadata = Metadata.read(read.metadata());
        BatonFacts facts = metadata.baton()
                .orElseThrow(() -> new InvalidFieldException(
                        "NixlAgentMetadata.baton",
                        "is missing: the peer is not an instance of Baton, and how its blocks lie is not known"));
        byte[] key = secret.map(known -> Incarnation.key(known, metadata.engineId(), facts.epoch()))
                .orElse(facts.key());
        if (key.length < Incarnation.MIN_KEY_BYTES) {
            throw new InvalidFieldException(
                    "NixlAgentMetadata.baton.key",
                    "has " + key.length + " bytes, must have at least " + Incarnation.MIN_KEY_BYTES);
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
                facts.checksums(),
                Optional.of(new Incarnation(facts.epoch(), key)));
    }

    /** A message's fields by name. */
    private record Fields(String what) {
        <T> Slot<T> slot(String name) {
            return new Slot<>(what + "." + name);
        }
    }

    /** A field's value, once it is read. */
    private static final class Slot<T> {
        private final String field;
        private Optional<T> value = Optional.empty();

        private Slot(String field) {
            this.field = field;
        }

        private T need() {
            return value.orElseThrow(() -> new InvalidFieldException(field, "is missing"));
        }
    }

    private static byte[] pack(Packing packing) {
        try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
            packing.pack(packer);
            return packer.toByteArray();
        } catch (IOException e) {
            throw new AssertionError("memory takes what is written", e);
        }
    }

    private static void bytes(MessageBufferPacker packer, String name, byte[] bytes) throws IOException {
        packer.packString(name).packBinaryHeader(bytes.length).writePayload(bytes);
    }

    private static void numbers(MessageBufferPacker packer, String name, long[] numbers) throws IOException {
        packer.packString(name).packArrayHeader(numbers.length);
        for (long number : numbers) {
            unsigned(packer, number);
        }
    }

    private static void unsigned(MessageBufferPacker packer, long number) throws IOException {
        packer.packBigInteger(new BigInteger(Long.toUnsignedString(number)));
    }
}
