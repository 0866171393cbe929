package baton.connectors.nixl;

import baton.connectors.onesided.BlockChecksums;
import baton.connectors.onesided.BlockInterior;
import baton.connectors.onesided.Incarnation;
import baton.connectors.onesided.LayerRegions;
import baton.connectors.onesided.RankInfo;
import baton.kv.DType;
import baton.kv.InvalidFieldException;
import baton.kv.KvDigest;
import baton.kv.KvLayout;
import baton.kv.connector.Rank;
import baton.messages.MsgpackReader;
import baton.messages.MsgpackWriter;
import baton.messages.PeerSecret;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import org.msgpack.core.MessageBufferPacker;

/**
 * The messages of a handshake, as vLLM's NIXL connector sends them over its side channel (its {@code nixl/metadata.py} and
 * {@code base_scheduler.py}, connector versions 14 of vLLM 0.32 and 15 of 0.33, which differ in the hash only): a question for one rank, {@code (b"get_meta_msg", pp_rank, tp_rank)}, is answered by two
 * frames, a {@link Payload} and the owner's clock in seconds. vLLM's msgspec writes dataclasses as maps with their fields' names, and
 * skips names that it does not know, as is done here.
 */
final class NixlHandshake {
    private static final byte[] GET_META = "get_meta_msg".getBytes(StandardCharsets.US_ASCII);
    private static final int MOST_RANKS = 65_535;

    private NixlHandshake() {}

    /** The question for a rank's metadata. */
    static byte[] question(Rank rank) {
        return MsgpackWriter.bytes(packer -> {
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
        return MsgpackWriter.bytes(packer -> packer.packDouble(seconds));
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
            return MsgpackWriter.bytes(packer -> {
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
     * The memory of a rank's layers: vLLM's regions, one for each layer.
     *
     * @param baseAddresses {@code kv_caches_base_addr}, of block 0
     * @param blockLengths {@code block_lens}: bytes of a block
     * @param blockStrides {@code block_strides}: bytes from one block to the next
     * @param names {@code region_names} of the layers
     * @param memoryTypes {@code region_mem_types}: {@code DRAM} or {@code VRAM}
     * @param groups {@code region_group_ids}: KV groups of the layers
     */
    record Regions(
            long[] baseAddresses,
            long[] blockLengths,
            long[] blockStrides,
            Optional<List<String>> names,
            Optional<List<String>> memoryTypes,
            Optional<int[]> groups) {
        int count() {
            return baseAddresses.length;
        }

        private void requireEqualCounts() {
            require("block_lens", blockLengths.length);
            require("block_strides", blockStrides.length);
            names.ifPresent(all -> require("region_names", all.size()));
            memoryTypes.ifPresent(all -> require("region_mem_types", all.size()));
            groups.ifPresent(all -> require("region_group_ids", all.length));
        }

        private void require(String name, int length) {
            if (length != count()) {
                throw new InvalidFieldException(
                        Metadata.WHAT + "." + name,
                        "has " + length + " elements, " + Metadata.WHAT + ".kv_caches_base_addr has " + count()
                                + "; must be as many");
            }
        }
    }

    /**
     * A rank's metadata: vLLM's {@code NixlAgentMetadata}.
     *
     * @param engineId {@code engine_id}
     * @param agent {@code agent_metadata} of its transfer agent
     * @param deviceId {@code device_id}
     * @param blocks {@code num_blocks}, of {@code blockSize} tokens
     * @param cacheLayout {@code kv_cache_layout}, a name of vLLM's; of Baton's regions it is {@code LBHNC}
     * @param blockSize {@code block_size}, tokens of a kernel's block
     * @param attentionBackend {@code attn_backend_name}; Baton's is {@code FLASH_ATTN}, which does not pack blocks
     * @param pagesPerBlock {@code physical_blocks_per_logical_kv_block}: kernel's blocks for one that requests name
     * @param regions of the layers
     * @param baton the fields of Baton's instances
     */
    record Metadata(
            String engineId,
            byte[] agent,
            int deviceId,
            int blocks,
            String cacheLayout,
            int blockSize,
            String attentionBackend,
            int pagesPerBlock,
            Regions regions,
            Optional<BatonFacts> baton) {
        static final String WHAT = "NixlAgentMetadata";
        private static final int MOST_PAGES = 1 << 16;

        byte[] encode() {
            return MsgpackWriter.bytes(packer -> {
                packer.packMapHeader(baton.isPresent() ? 22 : 21);
                packer.packString("engine_id").packString(engineId);
                NixlHandshake.bytes(packer, "agent_metadata", agent);
                numbers(packer, "kv_caches_base_addr", regions.baseAddresses());
                packer.packString("device_id").packInt(deviceId);
                packer.packString("num_blocks").packInt(blocks);
                numbers(packer, "block_lens", regions.blockLengths());
                numbers(packer, "block_strides", regions.blockStrides());
                packer.packString("kv_cache_layout").packString(cacheLayout);
                packer.packString("block_size").packInt(blockSize);
                packer.packString("ssm_sizes").packArrayHeader(2).packInt(0).packInt(0);
                packer.packString("attn_backend_name").packString(attentionBackend);
                packer.packString("physical_blocks_per_logical_kv_block").packInt(pagesPerBlock);
                long[] each = new long[regions.count()];
                Arrays.fill(each, blocks);
                numbers(packer, "region_num_blocks", each);
                packer.packString("region_group_ids");
                if (regions.groups().isPresent()) {
                    MsgpackWriter.numbers(packer, regions.groups().get());
                } else {
                    packer.packNil();
                }
                NixlHandshake.texts(packer, "region_names", regions.names());
                NixlHandshake.texts(packer, "region_mem_types", regions.memoryTypes());
                packer.packString("dcp_size").packInt(1);
                packer.packString("pcp_size").packInt(1);
                packer.packString("ple_block_len").packNil();
                packer.packString("region_members").packArrayHeader(0);
                packer.packString("packed_member_layouts").packMapHeader(0);
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
            Slot<long[]> strides = fields.slot("block_strides");
            Slot<String> layout = fields.slot("kv_cache_layout");
            Slot<Integer> blockSize = fields.slot("block_size");
            Slot<String> backend = fields.slot("attn_backend_name");
            Slot<Integer> pages = fields.slot("physical_blocks_per_logical_kv_block");
            Slot<List<String>> names = fields.slot("region_names");
            Slot<List<String>> memoryTypes = fields.slot("region_mem_types");
            Slot<int[]> groups = fields.slot("region_group_ids");
            Slot<BatonFacts> baton = fields.slot("baton");
            MsgpackReader.readFields(WHAT, message, (name, value) -> {
                switch (name) {
                    case "engine_id" -> engineId.value = Optional.of(value.text(engineId.field));
                    case "agent_metadata" -> agent.value = Optional.of(value.bytes(agent.field));
                    case "kv_caches_base_addr" -> addresses.value = Optional.of(value.unsignedNumbers(addresses.field));
                    case "device_id" -> device.value = Optional.of(value.integer(device.field, -1, MOST_RANKS));
                    case "num_blocks" -> blocks.value = Optional.of(value.integer(blocks.field, 1, Integer.MAX_VALUE));
                    case "block_lens" -> lengths.value = Optional.of(value.unsignedNumbers(lengths.field));
                    case "block_strides" -> strides.value = Optional.of(value.unsignedNumbers(strides.field));
                    case "kv_cache_layout" -> layout.value = Optional.of(value.text(layout.field));
                    case "block_size" -> blockSize.value = Optional.of(value.integer(blockSize.field, 1, 1 << 20));
                    case "attn_backend_name" -> backend.value = Optional.of(value.text(backend.field));
                    case "physical_blocks_per_logical_kv_block" ->
                        pages.value = Optional.of(value.integer(pages.field, 1, MOST_PAGES));
                    case "dcp_size", "pcp_size" -> {
                        String field = WHAT + "." + name;
                        int size = value.integer(field, 1, MOST_RANKS);
                        if (size != 1) {
                            throw new InvalidFieldException(
                                    field,
                                    "is " + size + ", must be 1: tokens that are spread over ranks are not read");
                        }
                    }
                    case "region_names" ->
                        names.value = value.nil(names.field) ? Optional.empty() : Optional.of(value.texts(names.field));
                    case "region_mem_types" ->
                        memoryTypes.value = value.nil(memoryTypes.field)
                                ? Optional.empty()
                                : Optional.of(value.texts(memoryTypes.field));
                    case "region_group_ids" -> {
                        if (!value.nil(groups.field)) {
                            groups.value = Optional.of(value.integers(groups.field, -1, MOST_RANKS));
                        }
                    }
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
            Regions regions = new Regions(
                    addresses.need(), lengths.need(), strides.need(), names.value, memoryTypes.value, groups.value);
            regions.requireEqualCounts();
            return new Metadata(
                    engineId.need(),
                    agent.need(),
                    device.need(),
                    blocks.need(),
                    layout.need(),
                    blockSize.need(),
                    backend.need(),
                    pages.need(),
                    regions,
                    baton.value);
        }
    }

    /**
     * The field {@code baton}, a map that vLLM skips: data for Baton's instances only.
     *
     * @param compatibility {@code compatibility} of Baton's instances, beside the hash that vLLM compares
     * @param epoch {@code epoch} of the instance's {@link Incarnation}
     * @param key {@code key} that its references are signed with; no bytes where peers derive it from their secret
     * @param fingerprint {@code fingerprint}: digest of the model
     * @param layout of the rank's pool: {@code layers}, {@code kv_heads}, {@code head_dim}, {@code block_size}, {@code dtype},
     *     and {@code latent}, which is 1, if entries are
     * @param modelKvHeads {@code model_kv_heads}: key/value heads of the whole model
     * @param rank {@code tp_rank} and {@code pp_rank}
     * @param tensorParallelSize {@code tp_size}
     * @param pipelineParallelSize {@code pp_size}
     * @param checksums the rank's table of checksums, if it has one: {@code seals} is the address of one of CRC32C; of another kind it
     *     is {@code digests}, and {@code digest} the kind, so that instances that know CRC32C only find no table
     */
    record BatonFacts(
            String compatibility,
            String epoch,
            byte[] key,
            String fingerprint,
            KvLayout layout,
            int modelKvHeads,
            Rank rank,
            int tensorParallelSize,
            int pipelineParallelSize,
            Optional<BlockChecksums.Table> checksums) {
        private void pack(MessageBufferPacker packer) throws IOException {
            Optional<String> digest = checksums
                    .map(BlockChecksums.Table::kind)
                    .filter(kind -> kind != KvDigest.CRC32C)
                    .map(KvDigest::label);
            packer.packMapHeader(
                    14 + (layout.latent() ? 1 : 0) + (checksums.isPresent() ? 1 : 0) + (digest.isPresent() ? 1 : 0));
            packer.packString("compatibility").packString(compatibility);
            packer.packString("epoch").packString(epoch);
            NixlHandshake.bytes(packer, "key", key);
            packer.packString("fingerprint").packString(fingerprint);
            packer.packString("layers").packInt(layout.layers());
            packer.packString("kv_heads").packInt(layout.kvHeads());
            packer.packString("head_dim").packInt(layout.headDim());
            packer.packString("block_size").packInt(layout.blockSize());
            packer.packString("dtype").packString(layout.dtype().torchName());
            if (layout.latent()) {
                packer.packString("latent").packInt(1);
            }
            packer.packString("model_kv_heads").packInt(modelKvHeads);
            packer.packString("tp_rank").packInt(rank.tensor());
            packer.packString("pp_rank").packInt(rank.pipeline());
            packer.packString("tp_size").packInt(tensorParallelSize);
            packer.packString("pp_size").packInt(pipelineParallelSize);
            if (checksums.isPresent()) {
                packer.packString(digest.isPresent() ? "digests" : "seals");
                MsgpackWriter.unsigned(packer, checksums.get().address());
            }
            if (digest.isPresent()) {
                packer.packString("digest").packString(digest.get());
            }
        }

        private static BatonFacts read(String what, MsgpackReader reader) {
            Fields fields = new Fields(what);
            Slot<String> compatibility = fields.slot("compatibility");
            Slot<String> epoch = fields.slot("epoch");
            Slot<byte[]> key = fields.slot("key");
            Slot<String> fingerprint = fields.slot("fingerprint");
            Slot<Integer> layers = fields.slot("layers");
            Slot<Integer> heads = fields.slot("kv_heads");
            Slot<Integer> headDim = fields.slot("head_dim");
            Slot<Integer> blockSize = fields.slot("block_size");
            Slot<DType> dtype = fields.slot("dtype");
            Slot<Integer> latent = fields.slot("latent");
            Slot<Integer> modelHeads = fields.slot("model_kv_heads");
            Slot<Integer> tensorRank = fields.slot("tp_rank");
            Slot<Integer> pipelineRank = fields.slot("pp_rank");
            Slot<Integer> tensorSize = fields.slot("tp_size");
            Slot<Integer> pipelineSize = fields.slot("pp_size");
            Slot<Long> seals = fields.slot("seals");
            Slot<Long> digests = fields.slot("digests");
            Slot<KvDigest> digest = fields.slot("digest");
            reader.fields(what, (name, value) -> {
                switch (name) {
                    case "compatibility" -> compatibility.value = Optional.of(value.text(compatibility.field));
                    case "epoch" -> epoch.value = Optional.of(value.text(epoch.field));
                    case "key" -> key.value = Optional.of(value.bytes(key.field));
                    case "fingerprint" -> fingerprint.value = Optional.of(value.text(fingerprint.field));
                    case "layers" -> layers.value = size(layers, value);
                    case "kv_heads" -> heads.value = size(heads, value);
                    case "head_dim" -> headDim.value = size(headDim, value);
                    case "block_size" -> blockSize.value = size(blockSize, value);
                    case "dtype" -> dtype.value = Optional.of(DType.named(dtype.field, value.text(dtype.field)));
                    case "latent" -> latent.value = Optional.of(value.integer(latent.field, 1, 1));
                    case "model_kv_heads" -> modelHeads.value = size(modelHeads, value);
                    case "tp_rank" -> tensorRank.value = Optional.of(value.integer(tensorRank.field, 0, MOST_RANKS));
                    case "pp_rank" ->
                        pipelineRank.value = Optional.of(value.integer(pipelineRank.field, 0, MOST_RANKS));
                    case "tp_size" -> tensorSize.value = size(tensorSize, value);
                    case "pp_size" -> pipelineSize.value = size(pipelineSize, value);
                    case "seals" -> seals.value = Optional.of(value.unsigned(seals.field));
                    case "digests" -> digests.value = Optional.of(value.unsigned(digests.field));
                    case "digest" -> digest.value = Optional.of(digest(digest.field, value.text(digest.field)));
                    default -> {
                        return false;
                    }
                }
                return true;
            });
            return new BatonFacts(
                    compatibility.need(),
                    epoch.need(),
                    key.need(),
                    fingerprint.need(),
                    new KvLayout(
                            layers.need(),
                            heads.need(),
                            headDim.need(),
                            blockSize.need(),
                            dtype.need(),
                            latent.value.isPresent()),
                    modelHeads.need(),
                    new Rank(pipelineRank.need(), tensorRank.need()),
                    tensorSize.need(),
                    pipelineSize.need(),
                    digests.value
                            .map(address -> new BlockChecksums.Table(digest.need(), address))
                            .or(() -> seals.value.map(address -> new BlockChecksums.Table(KvDigest.CRC32C, address))));
        }

        private static KvDigest digest(String field, String label) {
            return KvDigest.find(label)
                    .orElseThrow(() ->
                            new InvalidFieldException(field, "is " + label + ", must be one of " + KvDigest.labels()));
        }

        private static Optional<Integer> size(Slot<Integer> slot, MsgpackReader value) {
            return Optional.of(value.integer(slot.field, 1, MOST_RANKS));
        }
    }

    /**
     * A rank's answer in vLLM's handshake, with the field {@code baton} for Baton's instances. vLLM reads the pool as regions of
     * layers; a block's stride is that of all layers.
     *
     * @param info of an instance that signs references
     * @param hash that vLLM's instances compare
     * @param secret from which peers derive the key, which is then not sent
     */
    static byte[] encode(RankInfo info, String hash, Optional<PeerSecret> secret) {
        Incarnation own = info.incarnation().orElseThrow();
        KvLayout layout = info.layout();
        BatonFacts facts = new BatonFacts(
                info.compatibility(),
                own.epoch(),
                secret.isPresent() ? new byte[0] : own.key(),
                info.model(),
                layout,
                info.modelKvHeads(),
                info.rank(),
                info.tensorParallelSize(),
                info.pipelineParallelSize(),
                info.checksums());
        long[] lengths = new long[layout.layers()];
        Arrays.fill(lengths, layout.layerBytes());
        Regions regions = new Regions(
                info.regions().addresses(),
                lengths,
                info.regions().strides(),
                Optional.of(info.layerNames()).filter(names -> !names.isEmpty()),
                Optional.of(Collections.nCopies(
                        layout.layers(),
                        info.regions().device().isPresent() ? VllmRank.DEVICE_MEMORY : VllmRank.MAIN_MEMORY)),
                Optional.of(new int[layout.layers()]));
        Metadata metadata = new Metadata(
                info.engineId(),
                info.agent(),
                info.regions().device().orElse(0),
                info.blocks(),
                "LBHNC",
                layout.blockSize(),
                "FLASH_ATTN",
                1,
                regions,
                Optional.of(facts));
        return new Payload(hash, metadata.encode()).encode();
    }

    /**
     * Reads a rank's answer.
     *
     * @param asked the rank
     * @param secret from which the key of a Baton instance is derived
     * @param vllm reads the metadata of a vLLM instance
     * @throws InvalidFieldException if it is invalid, or of a vLLM instance with blocks that cannot be read
     */
    static RankInfo read(byte[] payload, Rank asked, Optional<PeerSecret> secret, VllmRank vllm) {
        Payload read = Payload.read(payload);
        Metadata metadata = Metadata.read(read.metadata());
        if (metadata.baton().isEmpty()) {
            return vllm.info(read.compatibilityHash(), metadata, asked);
        }
        BatonFacts facts = metadata.baton().get();
        byte[] key = secret.map(known -> Incarnation.key(known, metadata.engineId(), facts.epoch()))
                .orElse(facts.key());
        if (key.length < Incarnation.MIN_KEY_BYTES) {
            throw new InvalidFieldException(
                    "NixlAgentMetadata.baton.key",
                    "has " + key.length + " bytes, must have at least " + Incarnation.MIN_KEY_BYTES);
        }
        if (metadata.regions().count() == 0) {
            throw new InvalidFieldException("NixlAgentMetadata.kv_caches_base_addr", "is empty");
        }
        return new RankInfo(
                metadata.engineId(),
                facts.compatibility(),
                List.of(read.compatibilityHash()),
                facts.fingerprint(),
                facts.rank(),
                facts.tensorParallelSize(),
                facts.pipelineParallelSize(),
                metadata.agent(),
                facts.layout(),
                facts.modelKvHeads(),
                LayerRegions.ofPool(metadata.regions().baseAddresses()[0], facts.layout(), VllmRank.device(metadata)),
                metadata.regions().names().orElse(List.of()),
                BlockInterior.HEADS,
                1,
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

    private static void bytes(MessageBufferPacker packer, String name, byte[] bytes) throws IOException {
        packer.packString(name).packBinaryHeader(bytes.length).writePayload(bytes);
    }

    private static void numbers(MessageBufferPacker packer, String name, long[] numbers) throws IOException {
        packer.packString(name).packArrayHeader(numbers.length);
        for (long number : numbers) {
            MsgpackWriter.unsigned(packer, number);
        }
    }

    private static void texts(MessageBufferPacker packer, String name, Optional<List<String>> texts)
            throws IOException {
        packer.packString(name);
        if (texts.isEmpty()) {
            packer.packNil();
            return;
        }
        packer.packArrayHeader(texts.get().size());
        for (String text : texts.get()) {
            packer.packString(text);
        }
    }
}
