package baton.kv.connector;

import baton.kv.KvTransferConfig;
import java.util.function.IntFunction;

/**
 * A connector's hand-overs between two instances that are both in this process and reach nobody else, and that nobody else reaches.
 *
 * @param connector of both
 * @param producer configuration of the instance that gives
 * @param consumer configuration of the one that takes
 * @param requestId of the hand-over of that number, what both legs' ids have in common
 * @param end removes what the hand-overs leave behind
 */
public record Rehearsal(
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
