package baton.bench;

import baton.transfer.Transfer;
import baton.transfer.TransferException;
import java.util.concurrent.locks.LockSupport;

/** Waits for transfers that are measured. */
final class TransferWait {
    private TransferWait() {}

    /**
     * Seconds that a transfer took, by the agent's own measurement; waits for its end, which its deadline brings about.
     *
     * @param name names the transfer in messages
     * @throws TransferException if it fails
     */
    static double seconds(String name, Transfer transfer) throws TransferException {
        long begun = System.nanoTime();
        while (transfer.state() instanceof Transfer.State.UnderWay) {
            // Often enough to be invisible in the figures, and leaves the processors to the copying threads.
            LockSupport.parkNanos(Math.max(1, (System.nanoTime() - begun) / 32));
        }
        return switch (transfer.state()) {
            case Transfer.State.Done done -> done.elapsed().toNanos() / 1e9;
            case Transfer.State other -> throw new TransferException(name + " failed: " + other);
        };
    }
}
