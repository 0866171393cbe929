package baton.messages;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;

/**
 * The frames by which both sides of a connection prove that they have the {@link PeerSecret}: the caller sends a hello with a
 * nonce, receives the host's nonce, sends an HMAC over both, and receives one over both. Each frame begins with its name in
 * ASCII, so that it cannot be confused with another message.
 */
final class PeerProof {
    private static final String PREFIX = "baton-kv-auth/1 ";

    /** Kinds of frames. */
    enum Kind {
        HELLO,
        NONCE,
        PROOF,
        REFUSED;

        private byte[] start() {
            return (PREFIX + name() + " ").getBytes(StandardCharsets.US_ASCII);
        }

        byte[] frame(byte[] content) {
            byte[] start = start();
            byte[] frame = Arrays.copyOf(start, start.length + content.length);
            System.arraycopy(content, 0, frame, start.length, content.length);
            return frame;
        }

        /** The content of a frame of this kind; empty if it is another kind. */
        Optional<byte[]> read(byte[] frame) {
            byte[] start = start();
            return frame.length >= start.length && Arrays.equals(frame, 0, start.length, start, 0, start.length)
                    ? Optional.of(Arrays.copyOfRange(frame, start.length, frame.length))
                    : Optional.empty();
        }
    }

    private final PeerSecret secret;
    private final String purpose;
    private final byte[] callerNonce;
    private final byte[] hostNonce;

    /** The proofs of one connection whose nonces are known. */
    private PeerProof(PeerSecret secret, String purpose, byte[] callerNonce, byte[] hostNonce) {
        this.secret = secret;
        this.purpose = purpose;
        this.callerNonce = callerNonce;
        this.hostNonce = hostNonce;
    }

    /** The caller's proof for its message. */
    byte[] ofCaller(List<byte[]> said) {
        return Kind.PROOF.frame(secret.mac(purpose + " caller", parts(said)));
    }

    /** The host's proof for its answer. */
    byte[] ofHost(List<byte[]> told) {
        return Kind.PROOF.frame(secret.mac(purpose + " host", parts(told)));
    }

    boolean isOfCaller(byte[] frame, List<byte[]> said) {
        return Kind.PROOF
                .read(frame)
                .filter(mac -> secret.isMac(mac, purpose + " caller", parts(said)))
                .isPresent();
    }

    boolean isOfHost(byte[] frame, List<byte[]> told) {
        return Kind.PROOF
                .read(frame)
                .filter(mac -> secret.isMac(mac, purpose + " host", parts(told)))
                .isPresent();
    }

    private byte[][] parts(List<byte[]> said) {
        return Stream.concat(Stream.of(callerNonce, hostNonce), said.stream()).toArray(byte[][]::new);
    }

    /** The caller's side until the nonces are known. */
    static final class Caller {
        private final PeerSecret secret;
        private final String purpose;
        private final byte[] nonce = PeerSecret.nonce();

        /** @param purpose the same at both ends, and at no other kind of connection */
        Caller(PeerSecret secret, String purpose) {
            this.secret = secret;
            this.purpose = purpose;
        }

        byte[] hello() {
            return Kind.HELLO.frame(nonce);
        }

        /** @throws MessageException if it refuses, or answers with no nonce */
        PeerProof heard(List<byte[]> answer) throws MessageException {
            byte[] frame = answer.getFirst();
            requireNotRefused(frame);
            byte[] other = Kind.NONCE
                    .read(frame)
                    .filter(drawn -> drawn.length == PeerSecret.NONCE_BYTES)
                    .orElseThrow(() ->
                            new MessageException("it does not show that it knows the secret of kv_auth_secret_file"));
            return new PeerProof(secret, purpose, nonce, other);
        }
    }

    /** The called side: answers a hello. */
    static final class Host {
        private final PeerSecret secret;
        private final String purpose;
        private Optional<PeerProof> begun = Optional.empty();

        Host(PeerSecret secret, String purpose) {
            this.secret = secret;
            this.purpose = purpose;
        }

        /** The answer to a hello; empty if the frame is none. */
        Optional<byte[]> hello(byte[] frame) {
            return Kind.HELLO
                    .read(frame)
                    .filter(nonce -> nonce.length == PeerSecret.NONCE_BYTES)
                    .map(nonce -> {
                        byte[] own = PeerSecret.nonce();
                        begun = Optional.of(new PeerProof(secret, purpose, nonce, own));
                        return Kind.NONCE.frame(own);
                    });
        }

        /** The proof that the last hello has begun; can be taken once. */
        Optional<PeerProof> take() {
            Optional<PeerProof> taken = begun;
            begun = Optional.empty();
            return taken;
        }
    }

    static byte[] refusal(String why) {
        return Kind.REFUSED.frame(why.getBytes(StandardCharsets.UTF_8));
    }

    /** @throws MessageException if the frame is a refusal of this side, with the reason */
    static void requireNotRefused(byte[] frame) throws MessageException {
        Optional<byte[]> why = Kind.REFUSED.read(frame);
        if (why.isPresent()) {
            throw new MessageException(
                    "it refuses: " + PeerAccess.shown(new String(why.get(), StandardCharsets.UTF_8)));
        }
    }
}
