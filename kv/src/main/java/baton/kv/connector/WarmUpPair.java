package baton.kv.connector;

import baton.kv.JsonFields;
import baton.kv.KvTransferConfig;
import java.util.Map;
import java.util.function.IntFunction;
import tools.jackson.databind.node.ObjectNode;

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
    private static final JsonFields PREFILL =
            JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\":true,\"do_remote_prefill\":false}");

    /** The pair of a connector that needs no more in common in both legs than their request ids. */
    public WarmUpPair(
            KvConnector connector,
            KvTransferConfig producer,
            KvTransferConfig consumer,
            IntFunction<String> requestId,
            Runnable end) {
        this(connector, producer, consumer, requestId, _ -> Map.of(), end);
    }

    /** The {@code kv_transfer_params} of a hand-over's prefill request. */
    public JsonFields prefillParams(int number) {
        return decodeParams(number, PREFILL);
    }

    /**
     * The {@code kv_transfer_params} of a hand-over's decode request.
     *
     * @param advertised those that the prefill side advertises
     */
    public JsonFields decodeParams(int number, JsonFields advertised) {
        ObjectNode all = advertised.toJson();
        transfer.apply(number).forEach(all::put);
        return JsonFields.of("kv_transfer_params", all);
    }

    @Override
    public void close() {
        end.run();
    }
}
