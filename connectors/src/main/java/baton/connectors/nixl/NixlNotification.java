package baton.connectors.nixl;

import baton.connectors.onesided.NotificationCodec;
import baton.connectors.onesided.PeerNotification;
import baton.connectors.onesided.PeerNotification.Completion;
import baton.connectors.onesided.PeerNotification.Heartbeat;
import baton.connectors.onesided.PeerNotification.Instance;
import baton.connectors.onesided.PeerNotification.PushAccepted;
import baton.connectors.onesided.PeerNotification.PushCancel;
import baton.connectors.onesided.PeerNotification.PushDone;
import baton.connectors.onesided.PeerNotification.PushFailed;
import baton.connectors.onesided.PeerNotification.PushOver;
import baton.connectors.onesided.PeerNotification.PushPart;
import baton.connectors.onesided.PeerNotification.PushRegistration;
import baton.kv.InvalidFieldException;
import baton.messages.MsgpackReader;
import baton.messages.MsgpackWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;
import org.msgpack.core.MessageBufferPacker;

/**
 * Notifications in the form of vLLM's NIXL connector ({@code nixl/pull_worker.py}, {@code nixl/push_worker.py}): texts and, for the
 * registration of a push, a msgpack map behind a prefix.
 *
 * <pre>
 * {request}:{notifications}                                       Completion
 * HB:{request},{request}                                          Heartbeat
 * PUSH_REG:{msgpack}                                              PushRegistration
 * </pre>
 *
 * Only between Baton instances:
 *
 * <pre>
 * PUSH_ACCEPTED:{attempt}                                         PushAccepted
 * PUSH_PART:{attempt}:{first layer}:{end}:{first piece}:{end}     PushPart
 * PUSH_DONE:{attempt}:{prompt digest}:{block}={generation},...    PushDone
 * PUSH_FAILED:{attempt}                                           PushFailed
 * PUSH_CANCEL:{attempt}                                           PushCancel
 * PUSH_OVER:{request}:{notifications}                             PushOver
 * </pre>
 *
 * Requests and attempts may have colons.
 */
final class NixlNotification implements NotificationCodec {
    private static final String HEARTBEAT = "HB:";
    private static final String PUSH_REGISTRATION = "PUSH_REG:";
    private static final String PUSH_ACCEPTED = "PUSH_ACCEPTED:";
    private static final String PUSH_PART = "PUSH_PART:";
    private static final String PUSH_DONE = "PUSH_DONE:";
    private static final String PUSH_FAILED = "PUSH_FAILED:";
    private static final String PUSH_CANCEL = "PUSH_CANCEL:";
    private static final String PUSH_OVER = "PUSH_OVER:";
    private static final String REGISTRATION = "PUSH_REG";
    private static final int MAX_PORT = 65_535;
    private static final int MAX_RANKS = 65_535;

    @Override
    public byte[] encode(PeerNotification notification) {
        return switch (notification) {
            case PushRegistration registration -> encode(registration);
            case Completion completion -> bytes(text(completion));
            case Heartbeat(List<String> ids) -> bytes(HEARTBEAT + String.join(",", ids));
            case PushAccepted(String attempt) -> bytes(PUSH_ACCEPTED + attempt);
            case PushPart(String attempt, int firstLayer, int endLayer, int firstPiece, int endPiece) ->
                bytes(PUSH_PART + attempt + ":" + firstLayer + ":" + endLayer + ":" + firstPiece + ":" + endPiece);
            case PushDone(String attempt, String prompt, int[] blocks, long[] generations) ->
                bytes(PUSH_DONE + attempt + ":" + prompt + ":"
                        + IntStream.range(0, blocks.length)
                                .mapToObj(i -> blocks[i] + "=" + generations[i])
                                .collect(Collectors.joining(",")));
            case PushFailed(String attempt) -> bytes(PUSH_FAILED + attempt);
            case PushCancel(String attempt) -> bytes(PUSH_CANCEL + attempt);
            case PushOver(Completion completion) -> bytes(PUSH_OVER + text(completion));
        };
    }

    private static String text(Completion completion) {
        return completion.requestId() + ":" + completion.notifications();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    @Override
    public PeerNotification read(byte[] message) {
        byte[] registration = PUSH_REGISTRATION.getBytes(StandardCharsets.US_ASCII);
        if (message.length >= registration.length
                && Arrays.equals(message, 0, registration.length, registration, 0, registration.length)) {
            return readRegistration(Arrays.copyOfRange(message, registration.length, message.length));
        }
        String text = new String(message, StandardCharsets.UTF_8);
        try {
            if (text.startsWith(HEARTBEAT)) {
                return new Heartbeat(
                        Arrays.stream(text.substring(HEARTBEAT.length()).split(","))
                                .filter(id -> !id.isEmpty())
                                .toList());
            }
            if (text.startsWith(PUSH_ACCEPTED)) {
                return new PushAccepted(text.substring(PUSH_ACCEPTED.length()));
            }
            if (text.startsWith(PUSH_PART)) {
                return readPart(text);
            }
            if (text.startsWith(PUSH_DONE)) {
                return readDone(text);
            }
            if (text.startsWith(PUSH_FAILED)) {
                return new PushFailed(text.substring(PUSH_FAILED.length()));
            }
            if (text.startsWith(PUSH_CANCEL)) {
                return new PushCancel(text.substring(PUSH_CANCEL.length()));
            }
            return text.startsWith(PUSH_OVER)
                    ? new PushOver(readCompletion(text, text.substring(PUSH_OVER.length())))
                    : readCompletion(text, text);
        } catch (NumberFormatException e) {
            throw unknown(text, e);
        }
    }

    private static Completion readCompletion(String text, String completion) {
        int colon = completion.lastIndexOf(':');
        int size = Integer.parseInt(completion.substring(colon + 1));
        if (colon <= 0 || size <= 0) {
            throw unknown(text, null);
        }
        return new Completion(completion.substring(0, colon), size);
    }

    private static PushPart readPart(String text) {
        String[] numbers = new String[4];
        int end = text.length();
        for (int i = numbers.length - 1; i >= 0; i--) {
            int colon = text.lastIndexOf(':', end - 1);
            if (colon < PUSH_PART.length()) {
                throw unknown(text, null);
            }
            numbers[i] = text.substring(colon + 1, end);
            end = colon;
        }
        PushPart part = new PushPart(
                text.substring(PUSH_PART.length(), end),
                Integer.parseInt(numbers[0]),
                Integer.parseInt(numbers[1]),
                Integer.parseInt(numbers[2]),
                Integer.parseInt(numbers[3]));
        if (part.firstLayer() < 0 || part.firstPiece() < 0) {
            throw unknown(text, null);
        }
        return part;
    }

    /** A list of blocks that cannot be read makes the push a failed one: it has ended, and its blocks cannot be checked. */
    private static PeerNotification readDone(String text) {
        int list = text.lastIndexOf(':');
        int prompt = text.lastIndexOf(':', list - 1);
        if (prompt < PUSH_DONE.length()) {
            throw unknown(text, null);
        }
        String attempt = text.substring(PUSH_DONE.length(), prompt);
        String[] pairs = text.substring(list + 1).split(",", -1);
        int[] blocks = new int[pairs.length];
        long[] generations = new long[pairs.length];
        try {
            for (int i = 0; i < pairs.length; i++) {
                int equals = pairs[i].indexOf('=');
                blocks[i] = Integer.parseInt(pairs[i].substring(0, Math.max(0, equals)));
                generations[i] = Long.parseLong(pairs[i].substring(equals + 1));
            }
        } catch (NumberFormatException _) {
            return new PushFailed(attempt);
        }
        return Arrays.stream(blocks).allMatch(block -> block >= 0)
                ? new PushDone(attempt, text.substring(prompt + 1, list), blocks, generations)
                : new PushFailed(attempt);
    }

    private static InvalidFieldException unknown(String text, @Nullable Throwable cause) {
        String start = text.substring(0, Math.min(text.length(), 80)).replaceAll("[^ -~]", "?");
        String message = "is '" + start + "', must be <request>:<notifications>, " + HEARTBEAT + "<requests>, "
                + PUSH_REGISTRATION + "<msgpack> or another of Baton's notifications";
        return cause == null
                ? new InvalidFieldException("notification", message)
                : new InvalidFieldException("notification", message, cause);
    }

    /*
     * A registration's fields: request_id; decode_engine_id, decode_host, decode_port, decode_tp_size; local_block_ids, a list for each
     * group of layers; remote_engine_id, remote_host, remote_port, remote_tp_size, remote_pp_size; and
     * baton_permit, which vLLM skips.
     */

    private static byte[] encode(PushRegistration registration) {
        return MsgpackWriter.bytes(packer -> {
            packer.writePayload(PUSH_REGISTRATION.getBytes(StandardCharsets.US_ASCII));
            packer.packMapHeader(registration.permit().isPresent() ? 12 : 11)
                    .packString("request_id")
                    .packString(registration.requestId());
            pack(packer, "decode_", registration.decode());
            packer.packString("decode_tp_size").packInt(registration.decode().tensorParallelSize());
            packer.packString("local_block_ids")
                    .packArrayHeader(registration.localBlockIds().size());
            for (int[] group : registration.localBlockIds()) {
                MsgpackWriter.numbers(packer, group);
            }
            pack(packer, "remote_", registration.prefill());
            packer.packString("remote_tp_size").packInt(registration.prefill().tensorParallelSize());
            packer.packString("remote_pp_size").packInt(registration.prefillPipelineSize());
            if (registration.permit().isPresent()) {
                packer.packString("baton_permit");
                MsgpackWriter.unsigned(packer, registration.permit().getAsLong());
            }
        });
    }

    private static void pack(MessageBufferPacker packer, String prefix, Instance instance) throws IOException {
        packer.packString(prefix + "engine_id").packString(instance.engineId());
        packer.packString(prefix + "host").packString(instance.host());
        packer.packString(prefix + "port").packInt(instance.port());
    }

    private static PushRegistration readRegistration(byte[] message) {
        Map<String, Object> fields = new HashMap<>();
        MsgpackReader.readFields(REGISTRATION, message, (name, value) -> {
            String field = REGISTRATION + "." + name;
            switch (name) {
                case "request_id", "decode_engine_id", "decode_host", "remote_engine_id", "remote_host" ->
                    fields.put(name, value.text(field));
                case "decode_port", "remote_port" -> fields.put(name, value.integer(field, 1, MAX_PORT));
                case "decode_tp_size", "remote_tp_size", "remote_pp_size" ->
                    fields.put(name, value.integer(field, 1, MAX_RANKS));
                case "baton_permit" -> fields.put(name, value.unsigned(field));
                case "local_block_ids" -> {
                    List<int[]> groups = new ArrayList<>();
                    for (int left = value.array(field); left > 0; left--) {
                        groups.add(value.integers(field, 0, Integer.MAX_VALUE));
                    }
                    fields.put(name, groups.toArray(int[][]::new));
                }
                default -> {
                    return false;
                }
            }
            return true;
        });
        return new PushRegistration(
                need(fields, "request_id", String.class),
                instance(fields, "decode_"),
                List.of(need(fields, "local_block_ids", int[][].class)),
                instance(fields, "remote_"),
                need(fields, "remote_pp_size", Integer.class),
                fields.get("baton_permit") instanceof Long permit ? OptionalLong.of(permit) : OptionalLong.empty());
    }

    private static Instance instance(Map<String, Object> fields, String prefix) {
        return new Instance(
                need(fields, prefix + "engine_id", String.class),
                need(fields, prefix + "host", String.class),
                need(fields, prefix + "port", Integer.class),
                need(fields, prefix + "tp_size", Integer.class));
    }

    private static <T> T need(Map<String, Object> fields, String name, Class<T> type) {
        Object value = fields.get(name);
        if (value == null) {
            throw new InvalidFieldException(REGISTRATION + "." + name, "is missing");
        }
        return type.cast(value);
    }
}
