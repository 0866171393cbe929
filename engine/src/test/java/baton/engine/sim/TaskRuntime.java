package baton.engine.sim;

import baton.connectors.ConnectorRuntime;
import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.messages.PeerChannel;
import baton.messages.SideChannel;
import baton.pipe.WireTransport;
import baton.testkit.Forwarding;
import baton.transfer.Region;
import baton.transfer.TransferAgent;
import java.lang.foreign.Arena;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Executor;
import java.util.concurrent.ThreadFactory;
import java.util.function.LongSupplier;
import java.util.function.Supplier;

/** The virtual clock, and background work that is done late, when a worker looks at its agent for news. */
final class TaskRuntime implements ConnectorRuntime {
    private final Ticker ticker;
    private final Arena arena;
    private final LongSupplier delay;
    private final Supplier<TransferAgent> agents;
    private final Supplier<SideChannel> sideChannels;
    private final List<Task> tasks = new ArrayList<>();

    private record Task(long due, Runnable action) {}

    /**
     * @param arena as long as the world: peers may still read memory after it is closed here
     * @param delay how many nanoseconds late a task is
     */
    TaskRuntime(
            Ticker ticker,
            Arena arena,
            LongSupplier delay,
            Supplier<TransferAgent> agents,
            Supplier<SideChannel> sideChannels) {
        this.ticker = ticker;
        this.arena = arena;
        this.delay = delay;
        this.agents = agents;
        this.sideChannels = sideChannels;
    }

    /** Does something after that time. */
    void later(long nanos, Runnable action) {
        tasks.add(new Task(ticker.nanos() + nanos, action));
    }

    private void runTasks() {
        List<Task> due =
                tasks.stream().filter(task -> task.due() - ticker.nanos() <= 0).toList();
        tasks.removeAll(due);
        due.forEach(task -> task.action().run());
    }

    @Override
    @SuppressWarnings({"UnusedMethod", "EffectivelyPrivate"}) // called by Forwarding
    public TransferAgent transferAgent(JsonFields extra, String own, PeerAccess access) {
        TransferAgent agent = agents.get();
        // Lets the tasks run whenever a worker looks for news.
        return Forwarding.to(TransferAgent.class, agent, new Object() {
            public List<TransferAgent.Notification> takeNotifications() {
                runTasks();
                return agent.takeNotifications();
            }

            public void close() {
                // Tasks beside the steps end by themselves, soon, with the tasks that they begin.
                while (!tasks.isEmpty()) {
                    tasks.removeFirst().action().run();
                }
                agent.close();
            }
        });
    }

    @Override
    public Memory allocate(long bytes, String purpose) {
        Region region = new Region(arena.allocate(bytes, 8), Optional.empty());
        return new Memory() {
            @Override
            public Region region() {
                return region;
            }

            @Override
            public void close() {}
        };
    }

    @Override
    public SideChannel sideChannel() {
        return sideChannels.get();
    }

    @Override
    public PeerChannel peerChannel() {
        throw new UnsupportedOperationException("one-sided connectors have no lasting connections");
    }

    @Override
    public WireTransport wires(String field, String name, PeerAccess access) {
        throw new UnsupportedOperationException("one-sided connectors have no wires");
    }

    @Override
    public Ticker ticker() {
        return ticker;
    }

    @Override
    public ThreadFactory threads() {
        throw new UnsupportedOperationException("background() needs none");
    }

    @Override
    public Executor background() {
        return action -> later(delay.getAsLong(), action);
    }
}
