package baton.connectors.mooncake;

import baton.connectors.onesided.PromptPlan.Source;
import baton.connectors.onesided.PromptScheduler;
import baton.connectors.onesided.RequestIdMap;
import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.mooncake.MooncakeExchange;
import baton.messages.mooncake.RankRegistration;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * Makes this instance known to a registry and reads requests. Their {@code kv_transfer_params} are vLLM's: {@code do_remote_decode} or
 * {@code do_remote_prefill}, {@code transfer_id}, and for a decode request {@code remote_engine_id} and {@code remote_bootstrap_addr}.
 */
final class MooncakeScheduler extends PromptScheduler {
    private static final Logger log = LoggerFactory.getLogger(MooncakeScheduler.class);
    static final String TRANSFER_ID = "transfer_id";
    private static final String ENGINE_ID = "remote_engine_id";
    private static final String BOOTSTRAP = "remote_bootstrap_addr";

    private final MooncakeSettings settings;
    private final MooncakeExchange exchange;
    private Optional<PeerAddress> bootstrap = Optional.empty();

    MooncakeScheduler(ConnectorContext context, MooncakeSettings settings, MooncakeExchange exchange) {
        super(context);
        this.settings = settings;
        this.exchange = exchange;
    }

    @Override
    protected void publish(Map<Rank, PeerAddress> addresses) {
        List<RankRegistration> ranks = new ArrayList<>();
        addresses.forEach((rank, address) -> ranks.add(new RankRegistration(
                context.config().engineId(), settings.dpRank(), rank.tensor(), rank.pipeline(), address)));
        try {
            if (settings.registry().isPresent()) {
                registerElsewhere(settings.registry().get(), ranks);
            } else {
                MooncakeExchange.Registry own = exchange.serve(settings.host(), settings.bootstrapPort());
                for (RankRegistration rank : ranks) {
                    own.register(rank);
                }
                bootstrap = Optional.of(new PeerAddress(settings.host(), own.port()));
                log.info("Mooncake Bootstrap Server started at {}:{}", settings.host(), own.port());
            }
        } catch (MessageException e) {
            throw new ConfigException(
                    MooncakeSettings.BOOTSTRAP_PORT,
                    e.getMessage() + "; another " + MooncakeSettings.BOOTSTRAP_PORT
                            + " or VLLM_MOONCAKE_BOOTSTRAP_PORT, or 0 for a free one, may do",
                    e);
        }
    }

    private void registerElsewhere(PeerAddress registry, List<RankRegistration> ranks) {
        Duration timeout = settings.timeouts().handshake();
        Deadline deadline = Deadline.after(context.ticker(), timeout.multipliedBy(4));
        try {
            Void _ = deadline.get(exchange.register(registry, ranks, timeout));
            bootstrap = Optional.of(registry);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new ConfigException("bootstrap_server_address", "interrupted", e);
        } catch (ExecutionException | TimeoutException e) {
            throw new ConfigException(
                    "bootstrap_server_address",
                    "is " + registry + ", which does not register this instance: "
                            + (e.getCause() == null ? e : e.getCause()).getMessage(),
                    e);
        }
    }

    /** The source of a decode request's blocks, beside its {@code transfer_id}. */
    @Override
    public Optional<JsonFields> advertisedKvTransferParams() {
        return params().map(params -> JsonFields.of("kv_transfer_params", params));
    }

    private Optional<ObjectNode> params() {
        return bootstrap.map(address -> JsonNodeFactory.instance
                .objectNode()
                .put("do_remote_prefill", true)
                .put("do_remote_decode", false)
                .put(ENGINE_ID, context.config().engineId())
                .put(BOOTSTRAP, "http://" + address));
    }

    @Override
    protected Optional<ObjectNode> answer(String key) {
        return params().map(params -> params.put(TRANSFER_ID, key));
    }

    @Override
    protected Leg leg(String requestId, JsonFields params) {
        try {
            if (params.bool("do_remote_prefill").orElse(false)) {
                return new Leg(Optional.empty(), Optional.of(source(requestId, params)));
            }
            boolean kept = params.bool("do_remote_decode").orElse(false)
                    && context.config().isProducer();
            return kept ? new Leg(Optional.of(transferId(requestId, params)), Optional.empty()) : Leg.NONE;
        } catch (InvalidFieldException e) {
            log.warn(
                    "Got invalid KVTransferParams: {} This request will not utilize KVTransfer: {}",
                    e.getMessage(),
                    requestId);
            return Leg.NONE;
        }
    }

    /** @throws InvalidFieldException if a decode request's parameters name no prompt */
    private Source source(String requestId, JsonFields params) {
        if (!context.config().isConsumer()) {
            throw new InvalidFieldException("do_remote_prefill", "is true, and this instance only prefills");
        }
        String registry = text(params, BOOTSTRAP);
        String[] parts = registry.split("//", 2);
        Optional<PeerAddress> address = parts.length == 2 && parts[0].equals("http:")
                ? PeerAddress.find(parts[1].replaceFirst("/+$", ""))
                : Optional.empty();
        if (address.isEmpty()) {
            throw new InvalidFieldException(
                    BOOTSTRAP, "is '" + PeerAddress.shown(registry) + "', must be http://host:port");
        }
        if (!settings.access().mayConnect(address.get().host())) {
            settings.access().refuse(address.get().toString(), settings.access().notAllowed());
            throw new InvalidFieldException(BOOTSTRAP, "is " + settings.access().notAllowed());
        }
        return new Source(transferId(requestId, params), text(params, ENGINE_ID), address.get());
    }

    /** The id of the transfer; without one, as vLLM's proxies send none, the common part of both requests' ids. */
    private static String transferId(String requestId, JsonFields params) {
        return params.string(TRANSFER_ID).filter(id -> !id.isBlank()).orElseGet(() -> RequestIdMap.commonId(requestId));
    }

    private static String text(JsonFields params, String name) {
        return params.string(name)
                .filter(value -> !value.isBlank())
                .orElseThrow(() -> new InvalidFieldException(name, "is missing"));
    }

    @Override
    public List<Measurement> takeMeasurements() {
        return settings.access().takeRefusedMeasurement().stream().toList();
    }

    @Override
    public void close() {
        exchange.close();
        super.close();
    }
}
