package baton.connectors.nixl;

import baton.kv.ConfigException;
import baton.messages.MsgpackReader;
import java.io.IOException;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;
import org.msgpack.core.MessageBufferPacker;
import org.msgpack.core.MessagePack;

/**
 * What an agent notifies another of, in vLLM's words: texts and, for a push, msgpack behind a prefix ({@code nixl/pull_worker.py},
 * {@code nixl/push_worker.py}).
 */
sealed interface NixlNotification {
    String HEARTBEAT = "HB:";
    String PUSH_REGISTRATION = "PUSH_REG:";

    byte[] encode();

    /**
     * Reads a peer's notification.
     *
     * @throws ConfigException if it is none of these
     */
    static NixlNotification read(byte[] message) {
        byte[] push = PUSH_REGISTRATION.getBytes(StandardCharsets.US_ASCII);
        if (message.length >= push.length && Arrays.equals(message, 0, push.length, push, 0, push.length)) {
            return PushRegistration.read(Arrays.copyOfRange(message, push.length, message.length));
        }
        String text = new String(message, StandardCharsets.UTF_8);
        if (text.startsWith(HEARTBEAT)) {
            return new Heartbeat(
                    Arrays.stream(text.substring(HEARTBEAT.length()).split(","))
                            .filter(id -> !id.isEmpty())
                            .toList());
        }
        int colon = text.lastIndexOf(':');
        try {
            int size = Integer.parseInt(text.substring(colon + 1));
            if (colon > 0 && size > 0) {
                return new Completion(text.substring(0, colon), size);
            }
        } catch (NumberFormatException e) {
            throw unknown(text, e);
        }
        throw unknown(text, null);
    }

    private static ConfigException unknown(String text, @Nullable Throwable cause) {
        String start = text.substring(0, Math.min(text.length(), 80)).replaceAll("[^ -~]", "?");
        String message = "is '" + start + "', must be <request>:<tp size>, " + HEARTBEAT + "<requests> or "
                + PUSH_REGISTRATION + "<msgpack>";
        return cause == null
                ? new ConfigException("notification", message)
                : new ConfigException("notification", message, cause);
    }

    /**
     * A reader has read the blocks: {@code {request}:{tp size}}.
     *
     * @param requestId the owner's
     * @param tensorParallelSize of the reader
     */
    record Completion(String requestId, int tensorParallelSize) implements NixlNotification {
        @Override
        public byte[] encode() {
            return (requestId + ":" + tensorParallelSize).getBytes(StandardCharsets.UTF_8);
        }
    }

    /**
     * A reader still wants these requests' blocks: {@code HB:{request},{request}}.
     *
     * @param requestIds the owner's
     */
    record Heartbeat(List<String> requestIds) implements NixlNotification {
        public Heartbeat {
            requestIds = List.copyOf(requestIds);
        }

        @Override
        public byte[] encode() {
            return (HEARTBEAT + String.join(",", requestIds)).getBytes(StandardCharsets.UTF_8);
        }
    }

    /**
     * A decode instance says where a request's blocks are to be written: {@code PUSH_REG:} and a msgpack map.
     *
     * @param requestId {@code request_id}, by which both sides know the request
     * @param decode {@code decode_engine_id}, {@code decode_host}, {@code decode_port}, {@code decode_tp_size}
     * @param localBlockIds {@code local_block_ids}: blocks to write to, in the decode instance's only group of layers
     * @param prefill {@code remote_engine_id}, {@code remote_host}, {@code remote_port}, {@code remote_tp_size}
     * @param prefillPipelineSize {@code remote_pp_size}
     * @param permit {@code baton_permit}, which vLLM skips: token of the permit to write to these blocks, where one is needed
     */
    record PushRegistration(
            String requestId,
            Instance decode,
            int[] localBlockIds,
            Instance prefill,
            int prefillPipelineSize,
            OptionalLong permit)
            implements NixlNotification {
        private static final String WHAT = "PUSH_REG";
        private static final Pattern PERMITTED = Pattern.compile("#[0-9a-f]{16}(:|$)");

        /** An instance and its side channel. */
        record Instance(String engineId, String host, int port, int tensorParallelSize) {
            private void pack(MessageBufferPacker packer, String prefix) throws IOException {
                packer.packString(prefix + "engine_id").packString(engineId);
                packer.packString(prefix + "host").packString(host);
                packer.packString(prefix + "port").packInt(port);
            }

            private static Instance of(String prefix, Map<String, Object> fields) {
                return new Instance(
                        need(fields, prefix + "engine_id", String.class),
                        need(fields, prefix + "host", String.class),
                        need(fields, prefix + "port", Integer.class),
                        need(fields, prefix + "tp_size", Integer.class));
            }
        }

        /** How ours name it to each other: those with a permit of a request are several, and one's end must not be taken for another's. */
        String attempt() {
            return permit.isPresent() ? requestId + "#%016x".formatted(permit.getAsLong()) : requestId;
        }

        /** Whether a message is about an attempt with a permit. */
        static boolean isOfPermitted(String message) {
            return PERMITTED.matcher(message).find();
        }

        @Override
        public byte[] encode() {
            try (MessageBufferPacker packer = MessagePack.newDefaultBufferPacker()) {
                packer.writePayload(PUSH_REGISTRATION.getBytes(StandardCharsets.US_ASCII));
                packer.packMapHeader(permit.isPresent() ? 12 : 11)
                        .packString("request_id")
                        .packString(requestId);
                decode.pack(packer, "decode_");
                packer.packString("decode_tp_size").packInt(decode.tensorParallelSize());
                packer.packString("local_block_ids").packArrayHeader(1).packArrayHeader(localBlockIds.length);
                for (int id : localBlockIds) {
                    packer.packInt(id);
                }
                prefill.pack(packer, "remote_");
                packer.packString("remote_tp_size").packInt(prefill.tensorParallelSize());
                packer.packString("remote_pp_size").packInt(prefillPipelineSize);
                if (permit.isPresent()) {
                    packer.packString("baton_permit")
                            .packBigInteger(new BigInteger(Long.toUnsignedString(permit.getAsLong())));
                }
                return packer.toByteArray();
            } catch (IOException e) {
                throw new AssertionError("memory takes what is written", e);
            }
        }

        private static PushRegistration read(byte[] message) {
            Map<String, Object> fields = new HashMap<>();
            MsgpackReader.readFields(WHAT, message, (name, value) -> {
                String field = WHAT + "." + name;
                switch (name) {
                    case "request_id", "decode_engine_id", "decode_host", "remote_engine_id", "remote_host" ->
                        fields.put(name, value.text(field));
                    case "decode_port", "remote_port" -> fields.put(name, value.integer(field, 1, 65_535));
                    case "decode_tp_size", "remote_tp_size", "remote_pp_size" ->
                        fields.put(name, value.integer(field, 1, 65_535));
                    case "baton_permit" -> fields.put(name, value.unsigned(field));
                    case "local_block_ids" -> {
                        int groups = value.array(field);
                        if (groups != 1) {
                            throw new ConfigException(field, "has " + groups + " groups of layers, must have 1");
                        }
                        fields.put(name, value.integers(field, 0, Integer.MAX_VALUE));
                    }
                    default -> {
                        return false;
                    }
                }
                return true;
            });
            return new PushRegistration(
                    need(fields, "request_id", String.class),
                    Instance.of("decode_", fields),
                    need(fields, "local_block_ids", int[].class),
                    Instance.of("remote_", fields),
                    need(fields, "remote_pp_size", Integer.class),
                    fields.get("baton_permit") instanceof Long permit ? OptionalLong.of(permit) : OptionalLong.empty());
        }

        private static <T> T need(Map<String, Object> fields, String name, Class<T> type) {
            Object value = fields.get(name);
            if (value == null) {
                throw new ConfigException(WHAT + "." + name, "is missing");
            }
            return type.cast(value);
        }
    }
}
