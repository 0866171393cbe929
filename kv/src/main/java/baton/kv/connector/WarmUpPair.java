package baton.kv.connector;

import baton.kv.KvTransferConfig;
import java.util.function.IntFunction;

/**
 * Hand-overs of a connector between two stand-ins within this process, isolated from all other processes.
 *
 * @param connector of both sides
 * @param producer configuration of the prefill side
 * @param consumer configuration of the decode side
 * @param requestId gives, for the number of a hand-over, the part that the request ids of both legs have in common
 * @param end removes files and sockets of the hand-overs
 */
public record WarmUpPair(
        KvConnector connector,
        KvTransferConfig producer,
        KvTransferConfig consumer,
        IntFunction<String> requestId,
        Runnable end)
        implements AutoCloseable {
    @Override
    public void close() {
        end.run();
    }
}
