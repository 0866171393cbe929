package baton.connectors.onesided;

import baton.kv.GeneratedBuilder;
import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.messages.PeerAddress;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.stream.LongStream;
import java.util.stream.Stream;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * A reference to blocks of a peer: vLLM's {@code kv_transfer_params} of a finished prefill leg, with a {@link SignedProof} if the peer is
 * a Baton instance; or of a leg that was begun at the same time and has no known blocks yet.
 *
 * @param engineId {@code remote_engine_id}
 * @param requestId {@code remote_request_id}, by which the owner knows the blocks
 * @param host {@code remote_host} of the owner's side channel
 * @param port {@code remote_port}
 * @param tensorParallelSize {@code tp_size} of the owner
 * @param blocks {@code remote_block_ids}; none if they are not known yet; of several groups of layers one group after the other
 * @param ofGroups how many of them are of each group; those of a group are the last ones of {@code tokens}
 * @param tokens in the blocks, from the prompt's first on; {@code Integer.MAX_VALUE} if not known
 * @param registrations {@code remote_registration_generation}: a number that is higher when the owner has registered its memory anew; 0 if unknown
 * @param mode which side moves them
 */
@GeneratedBuilder
public record RemoteBlocks(
        String engineId,
        String requestId,
        String host,
        int port,
        int tensorParallelSize,
        int[] blocks,
        List<Integer> ofGroups,
        int tokens,
        long registrations,
        TransferMode mode,
        Optional<SignedProof> proof)
        implements RemoteBlocksBuilder.With {
    public RemoteBlocks {
        ofGroups = List.copyOf(ofGroups);
    }

    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;

    /** When the lease of the blocks expires: seconds by the owner's clock. */
    public static final String EXPIRY = "remote_blocks_expiry_time";

    private static final String BLOCKS = "remote_block_ids";
    private static final String REGISTRATIONS = "remote_registration_generation";
    private static final String PROOF = "baton";

    /** Each rank costs a connection. */
    private static final int MOST_RANKS = 1024;

    /** The address of the owner's side channel. */
    public PeerAddress address() {
        return new PeerAddress(host, port);
    }

    /**
     * Reads a reference. If it names no blocks, both legs were asked at once and the blocks do not exist yet: the owner then pushes them,
     * whatever {@code named} is, and both legs know the request by the common part of their ids, as vLLM's do; in {@code remote_request_id}
     * proxies send an id of their own, which is ignored.
     *
     * @param named the side that moves named blocks
     * @param requestId of the request that has the reference
     * @throws InvalidFieldException if a required field is missing or invalid
     */
    public static RemoteBlocks read(JsonFields params, TransferMode named, String requestId) {
        List<int[]> groups = blocks(params);
        int[] blocks = groups.stream().flatMapToInt(Arrays::stream).toArray();
        boolean areNamed =
                params.value(BLOCKS).isPresent() || params.value(PROOF).isPresent();
        TransferMode mode = areNamed ? named : TransferMode.PUSH;
        Optional<SignedProof> proof = params.object(PROOF)
                .map(fields -> new SignedProof(
                        need(fields, "epoch"),
                        need(fields, "model"),
                        numbers(fields, "generations"),
                        need(fields, "prompt"),
                        need(fields, "mac")));
        int port = params.integerAtLeast("remote_port", 1).orElseThrow(() -> missing(params, "remote_port"));
        if (port > 65535) {
            throw new InvalidFieldException(params.field("remote_port"), "is " + port + ", must be 1 to 65535");
        }
        return new RemoteBlocks(
                need(params, "remote_engine_id"),
                params.string("remote_request_id")
                        .filter(_ -> areNamed)
                        .or(() -> mode == TransferMode.PUSH
                                ? Optional.of(RequestIdMap.commonId(requestId))
                                : Optional.empty())
                        .orElseThrow(() -> missing(params, "remote_request_id")),
                need(params, "remote_host"),
                port,
                tensorParallelSize(params),
                blocks,
                groups.stream().map(group -> group.length).toList(),
                params.integerAtLeast("remote_num_tokens", 0).orElse(Integer.MAX_VALUE),
                params.integer(REGISTRATIONS).orElse(0L),
                mode,
                proof);
    }

    /** The {@code kv_transfer_params} of an owner without known blocks. */
    public static JsonFields ahead(
            String engineId, String host, int port, int tensorParallelSize, int pipelineParallelSize) {
        return JsonFields.of(
                "kv_transfer_params", owner(engineId, host, port, tensorParallelSize, pipelineParallelSize));
    }

    private static ObjectNode owner(
            String engineId, String host, int port, int tensorParallelSize, int pipelineParallelSize) {
        ObjectNode params = JSON.objectNode();
        params.put("do_remote_prefill", true);
        params.put("do_remote_decode", false);
        params.put("remote_engine_id", engineId);
        params.put("remote_host", host);
        params.put("remote_port", port);
        params.put("tp_size", tensorParallelSize);
        params.put("pp_size", pipelineParallelSize);
        return params;
    }

    /**
     * The {@code kv_transfer_params} that lead to the blocks.
     *
     * @param expiry {@code remote_blocks_expiry_time}: seconds by the owner's monotonic clock
     */
    public JsonFields toParams(double expiry, int pipelineParallelSize) {
        ObjectNode params = owner(engineId, host, port, tensorParallelSize, pipelineParallelSize);
        ArrayNode groups = params.putArray(BLOCKS);
        int from = 0;
        for (int size : ofGroups) {
            ArrayNode group = groups.addArray();
            Arrays.stream(blocks, from, from + size).forEach(group::add);
            from += size;
        }
        params.put("remote_request_id", requestId);
        params.put("remote_num_tokens", tokens);
        params.put(EXPIRY, expiry);
        params.put("transfer_mode", mode.label());
        if (mode == TransferMode.PULL && registrations > 0) {
            params.put(REGISTRATIONS, registrations);
        }
        proof.ifPresent(own -> {
            ObjectNode baton = JSON.objectNode();
            baton.put("epoch", own.epoch());
            baton.put("model", own.model());
            ArrayNode generations = JSON.arrayNode();
            for (long generation : own.generations()) {
                generations.add(generation);
            }
            baton.set("generations", generations);
            baton.put("prompt", own.prompt());
            baton.put("mac", own.mac());
            params.set(PROOF, baton);
        });
        return JsonFields.of("kv_transfer_params", params);
    }

    /** Whether it names no blocks, as they are pushed when they are computed. */
    public boolean isAhead() {
        return mode == TransferMode.PUSH && blocks.length == 0;
    }

    /** Whether it says for how many tokens its blocks are. */
    public boolean saysItsTokens() {
        return blocks.length > 0 && tokens > 0 && tokens < Integer.MAX_VALUE;
    }

    /** This reference with a proof. */
    public RemoteBlocks proven(String epoch, String model, long[] generations, String prompt, byte[] key) {
        RemoteBlocks unsigned = withProof(Optional.of(new SignedProof(epoch, model, generations, prompt, "")));
        return withProof(Optional.of(new SignedProof(epoch, model, generations, prompt, unsigned.mac(key))));
    }

    /** True if its proof was made with that key and nothing was changed since. */
    public boolean isSignedWith(byte[] key) {
        return proof.map(own -> MessageDigest.isEqual(
                        mac(key).getBytes(StandardCharsets.US_ASCII), own.mac().getBytes(StandardCharsets.UTF_8)))
                .orElse(false);
    }

    private String mac(byte[] key) {
        SignedProof own = proof.orElseThrow();
        try {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            DataOutputStream out = new DataOutputStream(bytes);
            text(out, engineId);
            text(out, requestId);
            // Not where it is: a proxy may know the owner by another address, and only the owner has the key.
            out.writeInt(tensorParallelSize);
            out.writeInt(tokens);
            out.writeInt(blocks.length);
            for (int block : blocks) {
                out.writeInt(block);
            }
            // The last group's number follows from that of all.
            for (int size : ofGroups.subList(0, Math.max(0, ofGroups.size() - 1))) {
                out.writeInt(size);
            }
            text(out, own.epoch());
            text(out, own.model());
            out.writeInt(own.generations().length);
            for (long generation : own.generations()) {
                out.writeLong(generation);
            }
            text(out, own.prompt());
            Mac hmac = Mac.getInstance("HmacSHA256");
            hmac.init(new SecretKeySpec(key, "HmacSHA256"));
            return HexFormat.of().formatHex(hmac.doFinal(bytes.toByteArray()));
        } catch (IOException | GeneralSecurityException e) {
            throw new AssertionError("every Java has HmacSHA256, and writing to memory does not fail", e);
        }
    }

    private static void text(DataOutputStream out, String text) throws IOException {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        out.writeInt(bytes.length);
        out.write(bytes);
    }

    private static String need(JsonFields fields, String name) {
        return fields.string(name).filter(value -> !value.isEmpty()).orElseThrow(() -> missing(fields, name));
    }

    private static InvalidFieldException missing(JsonFields fields, String name) {
        return new InvalidFieldException(fields.field(name), "is missing");
    }

    /** One list of ids, or, as vLLM sends it, one such list for each group of layers. */
    private static List<int[]> blocks(JsonFields params) {
        Optional<JsonNode> found = params.value(BLOCKS);
        if (found.isEmpty()) {
            return List.of(new int[0]);
        }
        JsonNode value = found.get();
        boolean byGroup =
                value.isArray() && !value.isEmpty() && value.valueStream().allMatch(JsonNode::isArray);
        return (byGroup ? value.valueStream() : Stream.of(value))
                .map(group -> ids(params, group))
                .toList();
    }

    private static int[] ids(JsonFields params, JsonNode group) {
        return checked(params, BLOCKS, group)
                .mapToInt(id -> Math.toIntExact(Math.min(id, Integer.MAX_VALUE)))
                .toArray();
    }

    private static int tensorParallelSize(JsonFields params) {
        int size = params.integerAtLeast("tp_size", 1).orElse(1);
        if (size > MOST_RANKS) {
            throw new InvalidFieldException(params.field("tp_size"), "is " + size + ", must be at most " + MOST_RANKS);
        }
        return size;
    }

    private static long[] numbers(JsonFields fields, String name) {
        return checked(fields, name, fields.value(name).orElseThrow(() -> missing(fields, name)))
                .toArray();
    }

    private static LongStream checked(JsonFields fields, String name, JsonNode value) {
        if (value.isArray()
                && value.valueStream()
                        .allMatch(each -> each.isIntegralNumber() && each.canConvertToLong() && each.asLong() >= 0)) {
            return value.valueStream().mapToLong(JsonNode::asLong);
        }
        throw new InvalidFieldException(fields.field(name), "must be an array of whole numbers from 0 to 2^63 - 1");
    }
}
