package baton.transfer.mooncake;

import baton.kv.Deadline;
import baton.messages.PeerAddress;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Optional;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/** Notifications as Mooncake carries them: text in the JSON of a handshake message. */
final class NotificationText {
    private NotificationText() {}

    /** Why a message cannot be sent. */
    static Optional<String> refused(byte[] message, MooncakeSettings.Limits limits) {
        if (message.length > limits.messageBytes()) {
            return Optional.of("a notification of %d bytes, at most %d are allowed"
                    .formatted(message.length, limits.messageBytes()));
        }
        try {
            String text = StandardCharsets.UTF_8
                    .newDecoder()
                    .decode(ByteBuffer.wrap(message))
                    .toString();
            if (!text.isEmpty() && text.indexOf('\0') < 0) {
                return Optional.empty();
            }
        } catch (CharacterCodingException e) {
            // Said below.
        }
        return Optional.of("a notification must be text in UTF-8 that is not empty and has no NUL, as Mooncake's are");
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
            MooncakeSettings.Limits limits,
            Deadline deadline)
            throws IOException {
        ObjectNode body = json.createObjectNode()
                .put("name", from)
                .put("notify_msg", new String(message, StandardCharsets.UTF_8));
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
