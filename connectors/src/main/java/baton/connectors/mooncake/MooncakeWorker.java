package baton.connectors.mooncake;

import baton.connectors.ConnectorRuntime;
import baton.connectors.onesided.LoadTable;
import baton.connectors.onesided.PromptPlan;
import baton.connectors.onesided.PromptScheduler;
import baton.connectors.onesided.TransferStats;
import baton.kv.ConfigException;
import baton.kv.KvCache;
import baton.kv.KvFence;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.mooncake.MooncakeExchange;
import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/** One rank's side of the connector: an agent, a channel, and the loads and writes of blocks. */
final class MooncakeWorker implements WorkerConnector {
    private static final String METRICS = "vllm:mooncake_";
    private static final String LABEL = "Mooncake";

    private final ConnectorContext context;
    private final MooncakeSettings settings;
    private final ConnectorRuntime runtime;
    private final MooncakeConnector.Agents agents;
    private final MooncakeExchange exchange;
    private final Rank rank;
    private final TransferStats stats;
    private @Nullable Parts parts;

    /** The state that exists once the pool is registered. */
    private record Parts(
            TransferAgent agent,
            Optional<PromptSender> sender,
            Optional<PeerAddress> address,
            PromptReceiver receiver) {}

    MooncakeWorker(
            ConnectorContext context,
            MooncakeSettings settings,
            ConnectorRuntime runtime,
            MooncakeConnector.Agents agents,
            MooncakeExchange exchange,
            Rank rank) {
        this.context = context;
        this.settings = settings;
        this.runtime = runtime;
        this.agents = agents;
        this.exchange = exchange;
        this.rank = rank;
        this.stats = new TransferStats(METRICS, LABEL, false, context.ticker().nanos());
        // Counters are shown from the start, as vLLM's.
        for (String counter : List.of("num_failed_transfers", "num_failed_recvs", "num_kv_expired_reqs")) {
            stats.add(Measurement.count(METRICS + counter, 0));
        }
    }

    @Override
    public void register(KvCache cache) {
        TransferAgent agent = TransferAgent.reaching(cache.memory(), agents.open(context.config(), settings));
        agent.onProgress(context.wake());
        try {
            // Closing the agent ends the registration. Mooncake's agent has no permits.
            TransferAgent.Registration _ = agent.register(new Region(cache.memory(), settings.isSealed()));
            LocalRank local = new LocalRank(context, settings, runtime, rank, cache, agent, stats);
            Optional<PromptSender> sender =
                    context.config().isProducer() ? Optional.of(new PromptSender(local)) : Optional.empty();
            Optional<PeerAddress> address = Optional.empty();
            if (sender.isPresent()) {
                address = Optional.of(exchange.listen(settings.host(), sender.get()::arrived));
            }
            parts = new Parts(agent, sender, address, new PromptReceiver(local, exchange, session(agent)));
        } catch (TransferException e) {
            agent.close();
            throw new ConfigException("kv_connector", "the KV pool cannot be registered: " + e.getMessage(), e);
        } catch (MessageException e) {
            agent.close();
            throw new ConfigException("kv_ip", String.valueOf(e.getMessage()), e);
        }
    }

    /** A Mooncake agent's metadata are its session; of another agent, which vLLM cannot reach, only the host. */
    private PeerAddress session(TransferAgent agent) {
        return PeerAddress.find(new String(agent.metadata(), StandardCharsets.UTF_8))
                .orElseGet(() -> new PeerAddress(settings.host(), 1));
    }

    @Override
    public Optional<HandshakeMetadata> handshakeMetadata() {
        return parts().address().map(PromptScheduler.Listening::new);
    }

    @Override
    public void startLoad(ConnectorMetadata metadata) {
        if (!(metadata instanceof PromptPlan step)) {
            return;
        }
        long now = context.ticker().nanos();
        step.wishes().forEach(wish -> parts().receiver().start(wish, now));
        step.cancelled().forEach(parts().receiver()::cancel);
        parts().sender().ifPresent(sender -> {
            step.ready().forEach(ready -> sender.ready(ready, now));
            step.abandoned().forEach(id -> sender.abandon(id, now));
            step.unknown().forEach(id -> sender.answerLost(id, now));
        });
        work();
    }

    /** Blocks are written when the step that computed them is over. */
    @Override
    public void saveLayer(int layer, KvFence computed) {}

    @Override
    public boolean savesByLayer() {
        return false;
    }

    @Override
    public WorkerReport report(Set<String> finished) {
        work();
        LoadTable.Finished loaded =
                parts().receiver().takeFinished(context.ticker().nanos());
        Set<String> sent = parts().sender().map(PromptSender::takeSent).orElse(Set.of());
        stats.log(context.ticker().nanos());
        settings.access().takeRefusedMeasurement().ifPresent(stats::add);
        boolean busy = parts().receiver().isBusy()
                || parts().sender().map(PromptSender::isBusy).orElse(false);
        return new WorkerReport(sent, loaded.received(), loaded.invalid(), stats.take(), busy)
                .withUnverified(loaded.unverified());
    }

    private void work() {
        long now = context.ticker().nanos();
        Parts own = parts();
        // No message of the agents means anything here.
        own.agent().takeNotifications();
        own.sender().ifPresent(sender -> sender.advance(now));
        own.receiver().work(now);
    }

    @Override
    public void close() {
        Parts last = parts;
        parts = null;
        exchange.close();
        if (last == null) {
            return;
        }
        last.agent().close();
        last.receiver().close();
        last.sender().ifPresent(PromptSender::close);
    }

    private Parts parts() {
        return Objects.requireNonNull(parts, "no pool is registered");
    }
}
