package baton.transfer.mooncake;

import baton.kv.Deadline;
import baton.messages.PeerAddress;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Optional;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Notifications as Mooncake carries them: text in the JSON of a handshake message. Bytes that are no such text go as {@value #BINARY} and
 * Base64, which agents of this package decode.
 */
final class NotificationText {
    private static final String BINARY = "baton/base64:";

    private NotificationText() {}

    /** Why a message cannot be sent. */
    static Optional<String> refused(byte[] message, MooncakeAgentSettings.Limits limits) {
        return message.length <= limits.messageBytes()
                ? Optional.empty()
                : Optional.of("a notification of %d bytes, at most %d are allowed"
                        .formatted(message.length, limits.messageBytes()));
    }

    /** Mooncake takes an empty text for a refusal, and its C API ends texts at a NUL. */
    private static String text(byte[] message) {
        try {
            String text = StandardCharsets.UTF_8
                    .newDecoder()
                    .decode(ByteBuffer.wrap(message))
                    .toString();
            if (!text.isEmpty() && text.indexOf('\0') < 0 && !text.startsWith(BINARY)) {
                return text;
            }
        } catch (CharacterCodingException e) {
            // It goes as bytes.
        }
        return BINARY + Base64.getEncoder().encodeToString(message);
    }

    /** The message that a text stands for. */
    static byte[] message(String text) {
        if (text.startsWith(BINARY)) {
            try {
                return Base64.getDecoder().decode(text.substring(BINARY.length()));
            } catch (IllegalArgumentException e) {
                // Text that looks like bytes.
            }
        }
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /**
     * Sends one.
     *
     * @param from the sender's name
     * @return false if the peer has refused it
     */
    static boolean send(
            JsonMapper json,
            PeerAddress to,
            String from,
            byte[] message,
            MooncakeAgentSettings.Limits limits,
            Deadline deadline)
            throws IOException {
        ObjectNode body = json.createObjectNode().put("name", from).put("notify_msg", text(message));
        byte[] answer = HandshakeMessage.exchange(
                new InetSocketAddress(to.host(), to.port()),
                new HandshakeMessage(
                        HandshakeMessage.Type.NOTIFY, body.toString().getBytes(StandardCharsets.UTF_8)),
                limits.handshakeBytes(),
                deadline);
        try {
            return !json.readTree(answer).path("notify_msg").asString("").isEmpty();
        } catch (JacksonException e) {
            throw new IOException("the answer to a notification is not JSON: " + e.getOriginalMessage(), e);
        }
    }
}
