package baton.transfer.embedded;

import baton.transfer.TransferAgent.Peer;

/**
 * An agent that this process's agent opened a connection to.
 *
 * @param connection the one to it
 */
record EmbeddedPeer(Connection connection) implements Peer {
    boolean isOf(EmbeddedAgent agent) {
        return connection.agent() == agent;
    }

    @Override
    public String name() {
        return connection.peerName();
    }

    @Override
    public boolean alive() {
        return connection.isOpen();
    }

    @Override
    public void close() {
        connection.beginClosing();
        connection.close();
    }

    @Override
    public String toString() {
        return connection.toString();
    }
}
