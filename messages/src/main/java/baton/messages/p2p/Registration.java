package baton.messages.p2p;

import baton.kv.InvalidFieldException;
import baton.messages.MsgpackReader;
import baton.messages.MsgpackWriter;
import baton.messages.PeerAddress;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;

/**
 * The message that an instance's rank 0 sends the proxy every few seconds, in one frame of a DEALER socket with its control address as
 * identity: the msgpack map {@code {"type": "P" | "D", "http_address": "ip:port", "zmq_address": "ip:port"}}. It is not answered.
 *
 * @param http address of its HTTP API
 * @param control control address of its rank 0
 */
public record Registration(Kind kind, PeerAddress http, PeerAddress control) {
    /** The instance's role. */
    public enum Kind {
        PREFILL("P"),
        DECODE("D");

        private final String letter;

        Kind(String letter) {
            this.letter = letter;
        }

        private static Kind of(String letter) {
            for (Kind kind : values()) {
                if (kind.letter.equals(letter)) {
                    return kind;
                }
            }
            throw new InvalidFieldException(
                    "registration.type", "is '" + PeerAddress.shown(letter) + "', must be P or D");
        }
    }

    public byte[] encode() {
        return MsgpackWriter.bytes(packer -> {
            packer.packMapHeader(3);
            packer.packString("type").packString(kind.letter);
            packer.packString("http_address").packString(http.toString());
            packer.packString("zmq_address").packString(control.toString());
        });
    }

    /** @throws InvalidFieldException if the bytes are no registration */
    public static Registration decode(byte[] message) {
        Map<String, String> texts = new HashMap<>();
        MsgpackReader.readFields("registration", message, (name, value) -> switch (name) {
            case "type", "http_address", "zmq_address" -> {
                texts.put(name, value.text("registration." + name));
                yield true;
            }
            default -> false;
        });
        return new Registration(
                Kind.of(required(texts, "type")),
                PeerAddress.parse("registration.http_address", required(texts, "http_address")),
                PeerAddress.parse("registration.zmq_address", required(texts, "zmq_address")));
    }

    private static String required(Map<String, String> texts, String name) {
        return Optional.ofNullable(texts.get(name))
                .orElseThrow(() -> new InvalidFieldException("registration." + name, "is missing"));
    }
}
