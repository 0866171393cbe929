package baton.connectors.sglang;

import baton.connectors.onesided.PromptPlan.Source;
import baton.connectors.onesided.PromptScheduler;
import baton.kv.ConfigException;
import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Rank;
import baton.kv.connector.WorkerReport;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.sglang.PrefillTopology;
import baton.messages.sglang.SglangExchange;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * Makes this instance known by its registry and reads requests. Their {@code kv_transfer_params} are {@code bootstrap_host},
 * {@code bootstrap_port} and {@code bootstrap_room}, at either instance. A prefill request may have {@code do_remote_decode} instead, as
 * vLLM's routers send it: then the answer has these three. The room is the prompt's key.
 */
final class SglangScheduler extends PromptScheduler {
    private static final Logger log = LoggerFactory.getLogger(SglangScheduler.class);
    private static final String HOST = "bootstrap_host";
    private static final String PORT = "bootstrap_port";
    private static final String ROOM = "bootstrap_room";
    private static final int DEFAULT_PORT = 8998;

    private final SglangSettings settings;
    private final SglangExchange exchange;
    private Optional<PeerAddress> bootstrap = Optional.empty();
    /** Requests with kept prompts in rooms that only their answers name. */
    private final Set<String> unnamed = new HashSet<>();

    SglangScheduler(ConnectorContext context, SglangSettings settings, SglangExchange exchange) {
        super(context);
        this.settings = settings;
        this.exchange = exchange;
    }

    @Override
    protected void publish(Map<Rank, PeerAddress> addresses) {
        Map<List<Integer>, PeerAddress> ranks = new LinkedHashMap<>();
        addresses.forEach((rank, address) -> ranks.put(List.of(rank.tensor(), rank.pipeline()), address));
        PrefillTopology topology = new PrefillTopology(
                context.tensorParallelSize(),
                1,
                1,
                context.pipelineParallelSize(),
                Optional.of(context.layout().blockSize()),
                // SGLang compares settings and not types: "auto" differs from "bfloat16" there. Ranks compare the bytes
                // of a page.
                Optional.empty(),
                true,
                PrefillTopology.EARLY);
        try {
            int port = exchange.serve(settings.host(), settings.bootstrapPort(), topology, ranks);
            bootstrap = Optional.of(new PeerAddress(settings.host(), port));
            log.info("SGLang's bootstrap server is at {}:{}", settings.host(), port);
        } catch (MessageException e) {
            throw new ConfigException(
                    SglangSettings.BOOTSTRAP_PORT,
                    e.getMessage() + "; another " + SglangSettings.BOOTSTRAP_PORT + ", or 0 for a free one, may do",
                    e);
        }
    }

    @Override
    protected Leg leg(String requestId, JsonFields params) {
        return context.config().isProducer()
                ? new Leg(kept(params), Optional.empty())
                : new Leg(Optional.empty(), source(params));
    }

    /** The room of a prefill request, if a decode request is to follow. */
    private static Optional<String> kept(JsonFields params) {
        Optional<Long> room = room(params);
        return (room.isEmpty() && params.bool("do_remote_decode").orElse(false)
                        ? Optional.of(ThreadLocalRandom.current().nextLong(Long.MAX_VALUE))
                        : room)
                .map(Object::toString);
    }

    /** The room, any number from 0 to 2^63 - 1; JSON numbers of other fields are smaller. */
    private static Optional<Long> room(JsonFields params) {
        return params.value(ROOM).map(room -> {
            if (!room.isIntegralNumber() || !room.canConvertToLong() || room.asLong() < 0) {
                throw new InvalidFieldException(
                        params.field(ROOM),
                        "is " + PeerAddress.shown(room.toString()) + ", must be from 0 to 2^63 - 1");
            }
            return room.asLong();
        });
    }

    private Optional<Source> source(JsonFields params) {
        return room(params).map(room -> {
            String host = params.string(HOST)
                    .orElseThrow(() -> new InvalidFieldException(
                            params.field(HOST), "is missing, must be the host of the prefill instance"));
            int port = params.integerAtLeast(PORT, 1).orElse(DEFAULT_PORT);
            PeerAddress address = PeerAddress.find(host, port)
                    .orElseThrow(() -> new InvalidFieldException(
                            params.field(HOST),
                            "is '" + PeerAddress.shown(host) + "' with " + PORT + " " + port
                                    + ", must be the address of a bootstrap server"));
            if (!settings.access().mayConnect(address.host())) {
                settings.access().refuse(address.toString(), settings.access().notAllowed());
                throw new InvalidFieldException(
                        params.field(HOST), "is " + settings.access().notAllowed());
            }
            return new Source(Long.toString(room), "", address);
        });
    }

    @Override
    public boolean isPrefilledElsewhere(KvRequest request) {
        return context.config().isConsumer()
                && request.kvTransferParams()
                        .flatMap(params -> params.value(ROOM))
                        .isPresent();
    }

    @Override
    protected Optional<ObjectNode> answer(String key) {
        return bootstrap.map(address -> JsonNodeFactory.instance
                .objectNode()
                .put("do_remote_prefill", true)
                .put(HOST, address.host())
                .put(PORT, address.port())
                .put(ROOM, Long.parseLong(key)));
    }

    /** Without a room no prompt was to be kept: that of an answer is drawn as the request begins. */
    @Override
    public void onRefused(String requestId, JsonFields params) {
        if (params.value(ROOM).isPresent()) {
            super.onRefused(requestId, params);
        }
    }

    @Override
    public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
        Release release = super.onFinished(request, end, blockTable);
        if (release.delayed()
                && request.kvTransferParams().flatMap(SglangScheduler::room).isEmpty()) {
            unnamed.add(request.id());
        }
        return release;
    }

    @Override
    public void onStepDone(WorkerReport report) {
        super.onStepDone(report);
        unnamed.removeAll(report.sent());
    }

    /** A room that the decode request names as well is kept for it. */
    @Override
    public void onAnswerLost(String requestId) {
        if (unnamed.remove(requestId)) {
            super.onAnswerLost(requestId);
        }
    }

    @Override
    public void close() {
        exchange.close();
        super.close();
    }
}
