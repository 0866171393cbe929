package baton.kv.connector;

import baton.kv.KvTransferConfig;
import java.util.Map;
import java.util.function.IntFunction;

/**
 * Hand-overs of a connector between two stand-ins within this process, isolated from all other processes.
 *
 * @param connector of both sides
 * @param producer configuration of the prefill side
 * @param consumer configuration of the decode side
 * @param requestId gives, for the number of a hand-over, the part that the request ids of both legs have in common
 * @param transfer gives, for the number of a hand-over, texts that the {@code kv_transfer_params} of both legs have
 * @param end removes files and sockets of the hand-overs
 */
public record WarmUpPair(
        KvConnector connector,
        KvTransferConfig producer,
        KvTransferConfig consumer,
        IntFunction<String> requestId,
        IntFunction<Map<String, String>> transfer,
        Runnable end)
        implements AutoCloseable {
    /** Of a connector that needs no more in common in both legs than their request ids. */
    public WarmUpPair(
            KvConnector connector,
            KvTransferConfig producer,
            KvTransferConfig consumer,
            IntFunction<String> requestId,
            Runnable end) {
        this(connector, producer, consumer, requestId, _ -> Map.of(), end);
    }

    @Override
    public void close() {
        end.run();
    }
}
