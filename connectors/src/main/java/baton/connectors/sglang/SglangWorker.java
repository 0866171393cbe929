package baton.connectors.sglang;

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
import baton.kv.connector.Rank;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.sglang.SglangExchange;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import baton.transfer.mooncake.MooncakeAgent;
import baton.transfer.mooncake.MooncakeAgentSettings;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/** One rank's side of the connector: an agent, a socket for messages, and the loads and writes of pages. */
final class SglangWorker implements WorkerConnector {
    /** The limit of messages that wait for the rank's thread. */
    private static final int WAITING_BYTES = 32 << 20;
    /** The memory of a frame beside its content. */
    private static final int FRAME_BYTES = 64;

    private final ConnectorContext context;
    private final SglangSettings settings;
    private final ConnectorRuntime runtime;
    private final SglangExchange exchange;
    private final Rank rank;
    private final TransferStats stats;
    /** Bytes that are free. */
    private final Semaphore space = new Semaphore(WAITING_BYTES);
    /** Messages of other ranks, as they arrive, in {@link #space}. */
    private final Queue<List<byte[]>> arrivals = new ConcurrentLinkedQueue<>();

    private @Nullable Parts parts;

    /** The state that exists once the pool is registered; a rank sends or receives. */
    private record Parts(
            SglangRank local,
            ConnectorRuntime.Memory memory,
            Optional<RoomSender> sender,
            Optional<RoomReceiver> receiver) {}

    SglangWorker(
            ConnectorContext context,
            SglangSettings settings,
            ConnectorRuntime runtime,
            SglangExchange exchange,
            Rank rank) {
        this.context = context;
        this.settings = settings;
        this.runtime = runtime;
        this.exchange = exchange;
        this.rank = rank;
        this.stats = new TransferStats(
                "baton:sglang_", "SGLang", false, context.ticker().nanos());
    }

    @Override
    public void register(KvCache cache) {
        ConnectorRuntime.Memory memory = runtime.allocate(SglangPages.bytes(cache), "pages in SGLang's order");
        TransferAgent agent;
        try {
            agent = MooncakeAgent.open(
                    MooncakeAgentSettings.at(settings.host()).withAccess(Optional.of(settings.access())));
        } catch (TransferException e) {
            memory.close();
            throw new ConfigException("kv_ip", "no transfer agent: " + e.getMessage(), e);
        }
        agent.onProgress(context.wake());
        try {
            // Closing the agent ends the registration. Mooncake has no permits.
            TransferAgent.Registration _ = agent.register(memory.region());
            PeerAddress address = exchange.listen(settings.host(), this::arrived);
            SglangRank local = new SglangRank(
                    context,
                    settings,
                    runtime,
                    rank,
                    cache,
                    agent,
                    exchange,
                    address,
                    new SglangPages(cache, memory),
                    stats);
            boolean sends = context.config().isProducer();
            parts = new Parts(
                    local,
                    memory,
                    sends ? Optional.of(new RoomSender(local)) : Optional.empty(),
                    sends
                            ? Optional.empty()
                            : Optional.of(new RoomReceiver(
                                    local, new String(agent.metadata(), StandardCharsets.ISO_8859_1))));
        } catch (TransferException | MessageException e) {
            agent.close();
            memory.close();
            throw new ConfigException("kv_ip", String.valueOf(e.getMessage()), e);
        }
    }

    /** A connection's thread waits for space, so that a peer that sends much fills its own connection. */
    private void arrived(List<byte[]> message) {
        try {
            if (!space.tryAcquire(bytes(message), settings.bootstrap().toNanos(), TimeUnit.NANOSECONDS)) {
                throw new IllegalStateException("messages are not taken");
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted", e);
        }
        arrivals.add(message);
        context.wake().run();
    }

    private static int bytes(List<byte[]> message) {
        return message.stream().mapToInt(frame -> frame.length + FRAME_BYTES).sum();
    }

    @Override
    public Optional<HandshakeMetadata> handshakeMetadata() {
        return Optional.of(new PromptScheduler.Listening(parts().local().address()));
    }

    @Override
    public void startLoad(ConnectorMetadata metadata) {
        if (!(metadata instanceof PromptPlan step)) {
            return;
        }
        long now = context.ticker().nanos();
        parts().receiver().ifPresent(receiver -> {
            step.wishes().forEach(wish -> receiver.start(wish, now));
            step.cancelled().forEach(receiver::cancel);
        });
        parts().sender().ifPresent(sender -> {
            step.ready().forEach(ready -> sender.ready(ready, now));
            step.abandoned().forEach(room -> sender.abandon(Long.parseLong(room)));
            step.unknown().forEach(sender::answerLost);
        });
        work();
    }

    /** Blocks are copied and written when the step that computed them is over. */
    @Override
    public void saveLayer(int layer, KvFence computed) {}

    @Override
    public boolean savesByLayer() {
        return false;
    }

    @Override
    public WorkerReport report(Set<String> finished) {
        work();
        long now = context.ticker().nanos();
        LoadTable.Finished loaded =
                parts().receiver().map(receiver -> receiver.takeFinished(now)).orElse(LoadTable.Finished.NONE);
        Set<String> sent = parts().sender().map(RoomSender::takeSent).orElse(Set.of());
        stats.log(now);
        settings.access().takeRefusedMeasurement().ifPresent(stats::add);
        boolean busy = parts().receiver().filter(RoomReceiver::isBusy).isPresent()
                || parts().sender().filter(RoomSender::isBusy).isPresent();
        return new WorkerReport(sent, loaded.received(), loaded.invalid(), stats.take(), busy)
                .withUnverified(loaded.unverified());
    }

    private void work() {
        long now = context.ticker().nanos();
        Parts own = parts();
        // No message of Mooncake's agents means anything here.
        own.local().agent().takeNotifications();
        for (List<byte[]> message = arrivals.poll(); message != null; message = arrivals.poll()) {
            List<byte[]> frames = message;
            space.release(bytes(frames));
            own.sender().ifPresent(sender -> sender.arrived(frames, now));
            own.receiver().ifPresent(receiver -> receiver.arrived(frames));
        }
        own.sender().ifPresent(sender -> sender.advance(now));
        own.receiver().ifPresent(receiver -> receiver.work(now));
    }

    @Override
    public void close() {
        Parts last = parts;
        parts = null;
        exchange.close();
        if (last == null) {
            return;
        }
        last.local().agent().close();
        last.receiver().ifPresent(RoomReceiver::close);
        last.sender().ifPresent(RoomSender::close);
        last.memory().close();
    }

    private Parts parts() {
        return Objects.requireNonNull(parts, "no pool is registered");
    }
}
