package baton.messages;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/**
 * The mutual authentication of both ends of a {@link PeerChannel} connection by their shared secret, before any other message.
 * The proofs cover both addresses, so that the called peer cannot relay them to another one.
 */
public final class PeerGreeting {
    private static final String PURPOSE = "peer channel";

    private final PeerProof.Host host;
    private final List<byte[]> ends;
    private final String self;
    private boolean done;

    /**
     * The side that is called.
     *
     * @param identity of the caller
     * @param self {@code host:port} of this side, as peers are told it
     */
    public PeerGreeting(PeerSecret secret, String identity, String self) {
        this.host = new PeerProof.Host(secret, PURPOSE);
        this.ends = ends(identity, self);
        this.self = self;
    }

    private static List<byte[]> ends(String caller, String called) {
        return List.of(caller.getBytes(StandardCharsets.UTF_8), called.getBytes(StandardCharsets.UTF_8));
    }

    /** Whether the caller is authenticated. */
    public boolean isDone() {
        return done;
    }

    /**
     * The answer to a message of the authentication.
     *
     * @throws MessageException if the caller does not know the secret; the connection should end
     */
    public List<byte[]> answer(List<byte[]> frames) throws MessageException {
        Optional<byte[]> greeted = host.hello(frames.getFirst());
        if (greeted.isPresent()) {
            return List.of(greeted.get());
        }
        PeerProof proof = host.take()
                .filter(begun -> begun.isOfCaller(frames.getFirst(), ends))
                .orElseThrow(() -> new MessageException(
                        "it does not show that it knows the secret, or has called another address than " + self));
        done = true;
        return List.of(proof.ofHost(ends));
    }

    /**
     * The calling side: returns when both are authenticated.
     *
     * @param identity of this side
     * @param called {@code host:port} of the peer, as this side called it
     * @throws MessageException if the peer does not know the secret, or does not answer in time
     */
    public static void greet(PeerChannel.Call call, PeerSecret secret, String identity, String called, Duration timeout)
            throws MessageException {
        PeerProof.Caller caller = new PeerProof.Caller(secret, PURPOSE);
        PeerProof proof = caller.heard(call.ask(List.of(caller.hello()), timeout));
        List<byte[]> ends = ends(identity, called);
        List<byte[]> answer = call.ask(List.of(proof.ofCaller(ends)), timeout);
        if (!proof.isOfHost(answer.getFirst(), ends)) {
            throw new MessageException("it does not show that it knows the secret of kv_auth_secret_file");
        }
    }
}
