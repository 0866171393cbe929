package baton.messages.p2p;

import baton.kv.InvalidFieldException;
import baton.messages.PeerAddress;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A request id that contains the addresses of the instances of both legs:
 * {@code ___prefill_addr_{ip:port}___decode_addr_{ip:port}_{uuid}}, as vLLM's proxy for P2pNcclConnector makes it.
 *
 * @param prefill control address of the prefill instance's rank 0
 * @param decode control address of the decode instance's rank 0
 * @param unique makes the id unique: 32 hexadecimal digits
 */
public record P2pRequestId(PeerAddress prefill, PeerAddress decode, String unique) {
    private static final Pattern UNIQUE = Pattern.compile("[0-9a-f]{32}");

    /**
     * The id inside a request's id, and the parts that servers add: before it the kind of the response, after it the prompt's number
     * (of completions), a random part, and the sequence's number (if there are several).
     */
    private static final Pattern INSIDE = Pattern.compile(
            "(.{0,64}?___prefill_addr_([^ ]{1,260}?)___decode_addr_([^ ]{1,260}?)_([0-9a-f]{32})(?:-[0-9]{1,6})?)"
                    + "(?:-[0-9a-f]{8})?(?:-([0-9]{1,6}))?");

    /** @throws IllegalArgumentException if {@code unique} is not 32 hexadecimal digits in lower case */
    public P2pRequestId {
        if (!UNIQUE.matcher(unique).matches()) {
            throw new IllegalArgumentException("unique='" + unique + "' must be 32 hexadecimal digits");
        }
    }

    /** The id as it goes into {@code X-Request-Id}. */
    public String format() {
        return "___prefill_addr_" + prefill + "___decode_addr_" + decode + "_" + unique;
    }

    /**
     * A request's id that contains such an id.
     *
     * @param id the addresses
     * @param shared the part that both legs and the ids of their tensors have in common: without an engine's random part and a
     *     sequence's number
     * @param sequence of the sequences of one request; 0 if there is one
     */
    public record Found(P2pRequestId id, String shared, int sequence) {
        /** The id of a layer's tensor. */
        public String tensorId(String layerName) {
            return shared + "#" + layerName;
        }
    }

    /**
     * Looks for such an id in the id of an engine's request; e.g. in {@code cmpl-<id>-0-1f2e3d4c}.
     *
     * @return empty if the id is an ordinary one
     * @throws InvalidFieldException if it has the form, but invalid addresses
     */
    public static Optional<Found> find(String requestId) {
        if (!requestId.contains("___prefill_addr_") && !requestId.contains("___decode_addr_")) {
            return Optional.empty();
        }
        Matcher inside = INSIDE.matcher(requestId);
        if (requestId.length() > 1024 || !inside.matches()) {
            throw new InvalidFieldException(
                    "request id",
                    "is '" + PeerAddress.shown(requestId)
                            + "', must have ___prefill_addr_{ip:port}___decode_addr_{ip:port}_{32 hexadecimal digits} in it");
        }
        String sequence = inside.group(5);
        return Optional.of(new Found(
                new P2pRequestId(
                        PeerAddress.parse("request id: prefill_addr", inside.group(2)),
                        PeerAddress.parse("request id: decode_addr", inside.group(3)),
                        inside.group(4)),
                inside.group(1),
                sequence == null ? 0 : Integer.parseInt(sequence)));
    }
}
