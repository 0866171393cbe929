package baton.transfer.embedded;

import baton.kv.Deadline;
import baton.messages.PeerSecret;
import baton.transfer.TransferException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Optional;

/**
 * The first frames of a connection, sealed where {@code kv_encryption} requires it: hello, proofs of the instances' secret where there is one, welcome or refusal. A handshake that
 * fails closes the connection.
 */
final class Handshake {
    /** What a proof is of: the connecting agent, and the one that it connects to. */
    private static final String CONNECTING = "transfer agent, connecting";

    private static final String CONNECTED = "transfer agent, connected";

    private final Connection connection;
    private final EmbeddedAgent agent;
    private final Deadline deadline;

    Handshake(Connection connection, Deadline deadline) {
        this.connection = connection;
        this.agent = connection.agent();
        this.deadline = deadline;
    }

    /** Of the agent that connects. */
    void connect(Metadata wanted, Frame.Hello hello) throws IOException, TransferException {
        try {
            connection.setPeer(wanted);
            connection.seal(deadline);
            connection.write(hello, deadline);
            if (agent.peerSecret().isPresent()) {
                prove(agent.peerSecret().get(), hello);
            }
            switch (answer()) {
                case Frame.Welcome() -> {}
                case Frame.Challenge _ ->
                    throw new TransferException("it asks for a secret, and there is no kv_auth_secret_file here");
                case Frame other ->
                    throw new TransferException("it answers " + other.getClass().getSimpleName());
            }
        } catch (IOException | TransferException | RuntimeException e) {
            connection.abandon();
            throw e;
        }
    }

    /** The next frame of the agent that was called; throws if that refuses. */
    private Frame answer() throws IOException, TransferException {
        Frame frame = connection.receive(deadline);
        if (frame instanceof Frame.Refuse(String reason)) {
            throw new TransferException("it refuses: " + reason);
        }
        return frame;
    }

    /** Proves to the agent called that this one knows the secret, and demands the same proof. */
    private void prove(PeerSecret secret, Frame.Hello hello) throws IOException, TransferException {
        byte[] nonce = switch (answer()) {
            case Frame.Challenge(byte[] drawn) -> drawn;
            default -> throw new TransferException("it does not know the secret of kv_auth_secret_file");
        };
        connection.write(new Frame.Proof(secret.mac(CONNECTING, proven(hello, nonce))), deadline);
        switch (answer()) {
            case Frame.Proof(byte[] mac) when secret.isMac(mac, CONNECTED, proven(hello, nonce)) -> {}
            default -> throw new TransferException("it does not know the secret of kv_auth_secret_file");
        }
    }

    /** Of the agent that is connected to. */
    void accept() throws IOException, TransferException {
        try {
            connection.seal(deadline);
            if (!(connection.receive(deadline) instanceof Frame.Hello hello)) {
                throw new TransferException("the connecting process sends no hello");
            }
            try {
                // An agent without the secret is not even told this agent's name.
                Optional<Frame.Proof> own = Optional.empty();
                if (agent.peerSecret().isPresent()) {
                    own = Optional.of(demandProof(agent.peerSecret().get(), hello));
                }
                Metadata connecting = Metadata.parse(hello.metadata());
                agent.admit(hello);
                if (own.isPresent()) {
                    connection.write(own.get(), deadline);
                }
                connection.setPeer(connecting);
                connection.updateMemory(new Metadata.Update(connecting.revision(), connecting.regions()));
            } catch (TransferException e) {
                String why = String.valueOf(e.getMessage());
                agent.refuse(connection.remoteAddress(), why);
                connection.writeSome(new Frame.Refuse(why));
                throw e;
            }
            connection.writeSome(new Frame.Welcome());
        } catch (IOException | TransferException | RuntimeException e) {
            connection.abandon();
            throw e;
        }
    }

    /**
     * Has the connecting agent prove that it knows the secret.
     *
     * @return this agent's own proof, to be sent once the other is admitted
     */
    private Frame.Proof demandProof(PeerSecret secret, Frame.Hello hello) throws IOException, TransferException {
        byte[] nonce = PeerSecret.nonce();
        connection.write(new Frame.Challenge(nonce), deadline);
        Frame answer;
        try {
            answer = connection.receive(deadline);
        } catch (IOException e) {
            throw new TransferException("it does not show that it knows the secret: " + e.getMessage(), e);
        }
        if (!(answer instanceof Frame.Proof(byte[] mac)) || !secret.isMac(mac, CONNECTING, proven(hello, nonce))) {
            throw new TransferException("it does not show that it knows the secret of kv_auth_secret_file");
        }
        return new Frame.Proof(secret.mac(CONNECTED, proven(hello, nonce)));
    }

    private static byte[][] proven(Frame.Hello hello, byte[] nonce) {
        return new byte[][] {hello.secret(), nonce, hello.name().getBytes(StandardCharsets.UTF_8), hello.metadata()};
    }
}
