package baton.messages;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/**
 * How both ends of a {@link PeerChannel} connection show each other, before anything else, that they know the secret. What they show is of
 * both addresses, so that a peer that was called can pass it on to no other one.
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
     * @param identity as the caller calls itself
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

    /** Whether the caller has shown that it knows the secret. */
    public boolean isDone() {
        return done;
    }

    /**
     * The answer to what the caller says before that.
     *
     * @throws MessageException if it does not know the secret; the connection should end
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
     * The side that calls: returns when both have shown it.
     *
     * @param identity as this side calls itself
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
