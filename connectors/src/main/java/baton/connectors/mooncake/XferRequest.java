package baton.connectors.mooncake;

import baton.kv.InvalidFieldException;
import baton.messages.MsgpackReader;
import baton.messages.MsgpackWriter;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.msgpack.core.MessageBufferPacker;

/**
 * A decode rank asks a prefill rank to write prompts into its blocks: vLLM's {@code MooncakeXferMetadata}, a msgpack map
 * (vllm/distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_connector.py).
 *
 * @param hostname of the session of the asking rank's transfer agent
 * @param port of that session
 * @param tpSize of the asking instance
 * @param tpRank of the asking rank
 * @param ppSize of the asking instance
 * @param requests by the asking instance's request id
 * @param regions of the asking rank's pool; none if {@code layoutId} stands for them
 * @param layoutId names the regions: a prefill rank that has answered with it remembers them. 0 if they are in each message
 * @param own the fields of Baton instances
 */
record XferRequest(
        String hostname,
        int port,
        int tpSize,
        int tpRank,
        int ppSize,
        Map<String, Wanted> requests,
        List<MooncakeRegion> regions,
        long layoutId,
        Optional<Own> own) {
    /** The key of Baton's fields in the msgpack map; vLLM's decoder skips it. */
    static final String OWN = "baton";

    private static final String WHAT = "MooncakeXferMetadata";
    private static final int MOST_RANKS = 65_535;

    XferRequest {
        requests = Collections.unmodifiableMap(new LinkedHashMap<>(requests));
        regions = List.copyOf(regions);
    }

    /**
     * One request's blocks.
     *
     * @param transferId of the router, which the prefill request has too
     * @param groups the blocks to be written, of each KV cache group: the last ones of the prompt. Without any, the prefill instance
     *     need not keep the prompt for the asking rank
     */
    record Wanted(String transferId, List<int[]> groups) {
        boolean isRelease() {
            return groups.stream().allMatch(blocks -> blocks.length == 0);
        }
    }

    /**
     * Baton's additional fields.
     *
     * @param attempt the unique name of this attempt to load
     * @param transferId of the request that the attempt is about
     * @param compatibility equal for instances that can exchange blocks
     * @param agent metadata of the asking rank's transfer agent
     * @param permit token of the agent's permit to write to the blocks, which ends with the load; 0 for none
     * @param stop do not write for the attempt any more, and answer when that is certain; {@link #requests} is empty then
     */
    record Own(String attempt, String transferId, String compatibility, byte[] agent, long permit, boolean stop) {}

    /** Names the regions at a prefill rank, as vLLM's {@code _peer_layout_key}. */
    record LayoutKey(String hostname, int port, int tpRank, int ppSize, int tpSize, long layoutId) {}

    /** The key of {@code layoutId}; empty if that is 0. */
    Optional<LayoutKey> layoutKey() {
        return Optional.of(new LayoutKey(hostname, port, tpRank, ppSize, tpSize, layoutId))
                .filter(key -> key.layoutId != 0);
    }

    byte[] encode() {
        return MsgpackWriter.bytes(packer -> {
            packer.packMapHeader(8
                    + (regions.isEmpty() ? 0 : 5)
                    + (ppSize == 1 ? 0 : 1)
                    + (layoutId == 0 ? 0 : 1)
                    + (own.isPresent() ? 1 : 0));
            packer.packString("remote_hostname").packString(hostname);
            packer.packString("remote_port").packInt(port);
            packer.packString("remote_tp_size").packInt(tpSize);
            packer.packString("remote_tp_rank").packInt(tpRank);
            packer.packString("req_blocks").packMapHeader(requests.size());
            for (Map.Entry<String, Wanted> request : requests.entrySet()) {
                packer.packString(request.getKey());
                packer.packArrayHeader(2).packString(request.getValue().transferId());
                packer.packArrayHeader(request.getValue().groups().size());
                for (int[] blocks : request.getValue().groups()) {
                    MsgpackWriter.numbers(packer, blocks);
                }
            }
            each(packer, "kv_caches_base_addr", region -> packer.packLong(region.address()));
            each(packer, "block_lens", region -> packer.packLong(region.stride()));
            each(packer, "kv_block_lens", region -> packer.packLong(region.bytes()));
            if (!regions.isEmpty()) {
                each(packer, "registered_layer_names", region -> packer.packString(region.layer()));
                each(packer, "registered_layer_indices", region -> packer.packInt(region.layerIndex()));
                each(packer, "registered_group_indices", region -> packer.packInt(region.group()));
                each(
                        packer,
                        "registered_shared_group_ids",
                        region -> packer.packArrayHeader(1).packInt(region.group()));
                // Not a view into a packed row: to be moved by its own length only.
                each(packer, "registered_row_offsets", _ -> packer.packInt(-1));
            }
            if (ppSize != 1) {
                packer.packString("remote_pp_size").packInt(ppSize);
            }
            if (layoutId != 0) {
                packer.packString("layout_id").packLong(layoutId);
            }
            if (own.isPresent()) {
                long permit = own.get().permit();
                packer.packString(OWN).packMapHeader(permit == 0 ? 5 : 6);
                packer.packString("attempt").packString(own.get().attempt());
                packer.packString("transfer_id").packString(own.get().transferId());
                packer.packString("compatibility").packString(own.get().compatibility());
                packer.packString("agent").packBinaryHeader(own.get().agent().length);
                packer.writePayload(own.get().agent());
                packer.packString("stop").packInt(own.get().stop() ? 1 : 0);
                if (permit != 0) {
                    packer.packString("permit");
                    MsgpackWriter.unsigned(packer, permit);
                }
            }
        });
    }

    /** Writes a field of a region. */
    @FunctionalInterface
    private interface RegionField {
        void pack(MooncakeRegion region) throws IOException;
    }

    private void each(MessageBufferPacker packer, String name, RegionField field) throws IOException {
        packer.packString(name).packArrayHeader(regions.size());
        for (MooncakeRegion region : regions) {
            field.pack(region);
        }
    }

    /** @throws InvalidFieldException if the bytes are no such message */
    static XferRequest decode(byte[] message) {
        Reading reading = new Reading();
        MsgpackReader.readFields(WHAT, message, reading::field);
        return reading.request();
    }

    private static final class Reading {
        private Optional<String> hostname = Optional.empty();
        private int port = -1;
        private int tpSize = -1;
        private int tpRank = -1;
        private int ppSize = 1;
        private final Map<String, Wanted> requests = new LinkedHashMap<>();
        private boolean hasRequests;
        private long[] addresses = {};
        private long[] strides = {};
        private long[] bytes = {};
        private List<String> names = List.of();
        private int[] indices = {};
        private int[] groups = {};
        private long layoutId;
        private Optional<Own> own = Optional.empty();

        private boolean field(String name, MsgpackReader value) {
            String field = WHAT + "." + name;
            switch (name) {
                case "remote_hostname" -> hostname = Optional.of(value.text(field));
                case "remote_port" -> port = value.integer(field, 0, 65_535);
                case "remote_tp_size" -> tpSize = value.integer(field, 1, MOST_RANKS);
                case "remote_tp_rank" -> tpRank = value.integer(field, 0, MOST_RANKS);
                case "remote_pp_size" -> ppSize = value.integer(field, 1, MOST_RANKS);
                case "req_blocks" -> {
                    hasRequests = true;
                    value.fields(field, (id, wanted) -> {
                        requests.put(id, wanted(field + "." + id, wanted));
                        return true;
                    });
                }
                case "kv_caches_base_addr" -> addresses = value.unsignedNumbers(field);
                case "block_lens" -> strides = value.unsignedNumbers(field);
                case "kv_block_lens" -> bytes = value.unsignedNumbers(field);
                case "registered_layer_names" -> names = value.texts(field);
                case "registered_layer_indices" -> indices = value.integers(field, -1, Integer.MAX_VALUE);
                case "registered_group_indices" -> groups = value.integers(field, -1, MOST_RANKS);
                case "layout_id" -> layoutId = value.unsigned(field);
                case OWN -> own = Optional.of(own(value));
                default -> {
                    return false;
                }
            }
            return true;
        }

        private static Wanted wanted(String field, MsgpackReader value) {
            if (value.array(field) != 2) {
                throw new InvalidFieldException(field, "must be [transfer_id, blocks of each group]");
            }
            String transferId = value.text(field);
            List<int[]> groups = new ArrayList<>();
            for (int left = value.array(field); left > 0; left--) {
                groups.add(value.integers(field, 0, Integer.MAX_VALUE));
            }
            return new Wanted(transferId, List.copyOf(groups));
        }

        private static Own own(MsgpackReader value) {
            Map<String, String> texts = new LinkedHashMap<>();
            List<byte[]> agent = new ArrayList<>();
            List<Integer> stop = new ArrayList<>();
            List<Long> permit = new ArrayList<>();
            value.fields(WHAT + "." + OWN, (name, inner) -> {
                String field = WHAT + "." + OWN + "." + name;
                switch (name) {
                    case "attempt", "transfer_id", "compatibility" -> texts.put(name, inner.text(field));
                    case "agent" -> agent.add(inner.bytes(field));
                    case "stop" -> stop.add(inner.integer(field, 0, 1));
                    case "permit" -> permit.add(inner.unsigned(field));
                    default -> {
                        return false;
                    }
                }
                return true;
            });
            if (texts.size() < 3 || agent.isEmpty()) {
                throw new InvalidFieldException(
                        WHAT + "." + OWN, "must have attempt, transfer_id, compatibility and agent");
            }
            return new Own(
                    texts.getOrDefault("attempt", ""),
                    texts.getOrDefault("transfer_id", ""),
                    texts.getOrDefault("compatibility", ""),
                    agent.getFirst(),
                    permit.isEmpty() ? 0 : permit.getFirst(),
                    stop.contains(1));
        }

        private XferRequest request() {
            if (hostname.isEmpty() || port < 0 || tpSize < 0 || tpRank < 0 || !hasRequests) {
                throw new InvalidFieldException(
                        WHAT, "must have remote_hostname, remote_port, remote_tp_size, remote_tp_rank and req_blocks");
            }
            int count = addresses.length;
            boolean named = names.size() == count && (indices.length == count || indices.length == 0);
            if (strides.length != count
                    || bytes.length != count
                    || !named
                    || (groups.length != count && groups.length != 0)) {
                throw new InvalidFieldException(
                        WHAT,
                        "has %d base addresses, %d block_lens, %d kv_block_lens, %d layer names, %d layer indices, %d group indices; they must be as many"
                                .formatted(
                                        count,
                                        strides.length,
                                        bytes.length,
                                        names.size(),
                                        indices.length,
                                        groups.length));
            }
            List<MooncakeRegion> regions = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                if (bytes[i] <= 0 || strides[i] < bytes[i]) {
                    throw new InvalidFieldException(
                            WHAT, "has kv_block_lens[" + i + "]=" + bytes[i] + " and block_lens=" + strides[i]);
                }
                regions.add(new MooncakeRegion(
                        names.get(i),
                        indices.length == 0 ? i : indices[i],
                        groups.length == 0 ? 0 : groups[i],
                        addresses[i],
                        strides[i],
                        bytes[i]));
            }
            return new XferRequest(
                    hostname.get(), port, tpSize, tpRank, ppSize, requests, List.copyOf(regions), layoutId, own);
        }
    }
}
