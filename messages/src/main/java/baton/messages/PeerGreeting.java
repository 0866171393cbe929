package baton.messages;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/** How both ends of a {@link PeerChannel} connection show each other, before anything else, that they know the secret. */
public final class PeerGreeting {
    private static final String PURPOSE = "peer channel";

    private final PeerProof.Host host;
    private final List<byte[]> identity;
    private boolean done;

    /**
     * The side that is called.
     *
     * @param identity as the caller calls itself: the proof is of that
     */
    public PeerGreeting(PeerSecret secret, String identity) {
        this.host = new PeerProof.Host(secret, PURPOSE);
        this.identity = List.of(bytes(identity));
    }

    private static byte[] bytes(String identity) {
        return identity.getBytes(StandardCharsets.UTF_8);
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
                .filter(begun -> begun.isOfCaller(frames.getFirst(), identity))
                .orElseThrow(() -> new MessageException("it does not show that it knows the secret"));
        done = true;
        return List.of(proof.ofHost(identity));
    }

    /**
     * The side that calls: returns when both have shown it.
     *
     * @param identity as this side calls itself
     * @throws MessageException if the peer does not know the secret, or does not answer in time
     */
    public static void greet(PeerChannel.Call call, PeerSecret secret, String identity, Duration timeout)
            throws MessageException {
        PeerProof.Caller caller = new PeerProof.Caller(secret, PURPOSE);
        PeerProof proof = caller.heard(call.ask(List.of(caller.hello()), timeout));
        List<byte[]> own = List.of(bytes(identity));
        List<byte[]> answer = call.ask(List.of(proof.ofCaller(own)), timeout);
        if (!proof.isOfHost(answer.getFirst(), own)) {
            throw new MessageException("it does not show that it knows the secret of kv_auth_secret_file");
        }
    }
}
