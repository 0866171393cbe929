package baton.transfer.embedded;

import baton.kv.Deadline;
import baton.transfer.TransferException;
import java.io.IOException;

/**
 * The first frames of a connection: hello, welcome or refusal. Where instances have a secret, the frames are sealed with it, so that an agent
 * without it neither sends nor reads one. A handshake that fails closes the connection.
 */
final class Handshake {
    private final Connection connection;
    private final EmbeddedAgent agent;
    private final Deadline deadline;

    Handshake(Connection connection, Deadline deadline) {
        this.connection = connection;
        this.agent = connection.agent();
        this.deadline = deadline;
    }

    /** The handshake of the agent that connects. */
    void connect(Metadata wanted, Frame.Hello hello) throws IOException, TransferException {
        try {
            connection.setPeer(wanted);
            connection.seal(deadline);
            connection.write(hello, deadline);
            switch (answer()) {
                case Frame.Welcome() -> {}
                case Frame.Refuse(String reason) -> throw new TransferException("it refuses: " + reason);
                case Frame other ->
                    throw new TransferException("it answers " + other.getClass().getSimpleName());
            }
            connection.unsealUnlessRequired();
        } catch (IOException | TransferException | RuntimeException e) {
            connection.abandon();
            throw e;
        }
    }

    private Frame answer() throws IOException, TransferException {
        try {
            return connection.receive(deadline);
        } catch (TransferException e) {
            throw new TransferException(
                    "it does not answer a hello (" + e.getMessage()
                            + "): kv_auth_secret_file must be the same on both sides",
                    e);
        }
    }

    /** The handshake of the agent that accepts. */
    void accept() throws IOException, TransferException {
        try {
            connection.seal(deadline);
            if (!(connection.receive(deadline) instanceof Frame.Hello hello)) {
                throw new TransferException("the connecting process sends no hello");
            }
            try {
                Metadata connecting = Metadata.parse(hello.metadata());
                agent.admit(hello);
                connection.setPeer(connecting);
                connection.updateMemory(new Metadata.Update(connecting.revision(), connecting.regions()));
            } catch (TransferException e) {
                String why = String.valueOf(e.getMessage());
                agent.refuse(connection.remoteAddress(), why);
                connection.refuse(why);
                throw e;
            }
            connection.write(new Frame.Welcome(), deadline);
            connection.unsealUnlessRequired();
        } catch (IOException | TransferException | RuntimeException e) {
            connection.abandon();
            throw e;
        }
    }
}
