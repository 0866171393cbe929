package baton.transfer.mooncake;

import baton.kv.Deadline;
import baton.messages.PeerAddress;
import baton.transfer.TransferException;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.function.Predicate;
import tools.jackson.databind.json.JsonMapper;

/**
 * Mooncake's {@code P2PHANDSHAKE}: an engine's handshake daemon gives its descriptor itself.
 *
 * @param mayConnect whether a host may be connected to
 * @param longest bytes of an answer
 */
record HandshakeDirectory(JsonMapper json, Predicate<String> mayConnect, int longest) implements SegmentDirectory {
    private static final byte[] EMPTY = {'{', '}'};

    @Override
    public String ownName(PeerAddress rpc) {
        return rpc.toString();
    }

    @Override
    public Located find(String name, Deadline deadline) throws TransferException {
        PeerAddress rpc = PeerAddress.find(name)
                .orElseThrow(() -> new TransferException(
                        "segment '%s' must be host:port of a Mooncake engine".formatted(PeerAddress.shown(name))));
        if (!mayConnect.test(rpc.host())) {
            throw new TransferException("segment %s is at a host that is not an allowed peer".formatted(name));
        }
        try {
            byte[] answer = HandshakeMessage.exchange(
                    new InetSocketAddress(rpc.host(), rpc.port()),
                    // Engines send their own descriptor, and none looks at it.
                    new HandshakeMessage(HandshakeMessage.Type.METADATA, EMPTY.clone()),
                    longest,
                    deadline);
            return new Located(rpc, SegmentDescriptor.parse(json, answer));
        } catch (IOException e) {
            throw new TransferException(
                    "segment %s does not answer with its descriptor: %s".formatted(name, e.getMessage()), e);
        }
    }

    @Override
    public void publish(PeerAddress rpc, SegmentDescriptor descriptor) {
        // Peers ask.
    }

    @Override
    public void close() {
        // Nothing was made known.
    }
}
