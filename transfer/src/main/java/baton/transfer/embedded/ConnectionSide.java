package baton.transfer.embedded;

import baton.transfer.TransferException;

/** The part that this process has in a connection: the agent that opened it initiates transfers, the one that accepted it responds. */
sealed interface ConnectionSide permits Initiator, Responder {
    /**
     * Handles a frame that only this side receives.
     *
     * @throws TransferException if the peer breaks the protocol
     */
    void handle(Frame frame) throws TransferException;

    static TransferException unexpected(Frame frame) {
        return new TransferException("it says " + frame.getClass().getSimpleName() + " where that makes no sense");
    }
}
