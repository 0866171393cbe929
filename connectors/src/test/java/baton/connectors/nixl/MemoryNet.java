package baton.connectors.nixl;

import baton.connectors.ConnectorRuntime;
import baton.connectors.onesided.PeerHandshake;
import baton.kv.JsonFields;
import baton.kv.KvMemory;
import baton.kv.Ticker;
import baton.kv.connector.Rank;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerChannel;
import baton.messages.SideChannel;
import baton.pipe.WireTransport;
import baton.testkit.MemorySideChannels;
import baton.testkit.RefusingMemory;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.Transfer.Cause;
import baton.transfer.Transfer.State;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Executor;
import java.util.concurrent.ThreadFactory;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * Agents, side channels and threads in memory, for one thread. Transfers and background work happen at once, or, while
 * {@link #hold} is on, when {@link #run} is called.
 */
public final class MemoryNet {
    private final Map<String, Agent> agents = new HashMap<>();
    private final Ticker ticker;
    private final MemorySideChannels sideChannels = new MemorySideChannels(this::beforeAnswer);
    private final Deque<Runnable> waiting = new ArrayDeque<>();
    private final Set<String> gone = new HashSet<>();
    private boolean held;
    private boolean permits = true;
    private boolean reachesDevices = true;
    private boolean losesMessages;
    private int names;
    private long tokens;
    /** Called before and after each range is copied. */
    private Runnable beforeCopy = () -> {};

    private Runnable afterCopy = () -> {};
    private boolean sideChannelsDown;
    private boolean vllmAnswers;
    /** Called when somebody is asked for one of its ranks. */
    private Consumer<Rank> beforeAnswer = _ -> {};

    private final List<String> notified = new ArrayList<>();
    private final List<Move> written = new ArrayList<>();

    public MemoryNet(Ticker ticker) {
        this.ticker = ticker;
    }

    private void beforeAnswer(List<byte[]> question) throws MessageException {
        if (sideChannelsDown) {
            throw new MessageException("side channels are down");
        }
        beforeAnswer.accept(NixlHandshake.readQuestion(question.getFirst()));
    }

    /** A handshake in which peers answer as vLLM does while {@link #vllmAnswers} is on. */
    PeerHandshake answered(PeerHandshake handshake) {
        return (peer, rank, timeout) -> {
            PeerHandshake.Answer answer = handshake.ask(peer, rank, timeout);
            return vllmAnswers
                    ? new PeerHandshake.Answer(answer.info().withIncarnation(Optional.empty()), answer.clockOffset())
                    : answer;
        };
    }

    void hold(boolean on) {
        held = on;
        if (!on) {
            run();
        }
    }

    void run() {
        for (Runnable next = waiting.poll(); next != null; next = waiting.poll()) {
            next.run();
        }
    }

    /** Does the first thing that waits. */
    void runOne() {
        waiting.remove().run();
    }

    int waiting() {
        return waiting.size();
    }

    void beforeCopy(Runnable action) {
        beforeCopy = action;
    }

    void afterCopy(Runnable action) {
        afterCopy = action;
    }

    void sideChannelsDown(boolean down) {
        sideChannelsDown = down;
    }

    /** Peers answer handshakes as vLLM does, without an incarnation. */
    void vllmAnswers(boolean on) {
        vllmAnswers = on;
    }

    void beforeAnswer(Consumer<Rank> action) {
        beforeAnswer = action;
    }

    /** The agents' notifications, except those of transfers. */
    List<String> notified() {
        return List.copyOf(notified);
    }

    /** The process is dead: its agent and side channel are gone. */
    void kill(MemoryRuntime runtime) {
        runtime.agents.forEach(agent -> {
            gone.add(agent.name);
            agents.remove(agent.name);
        });
        runtime.channels.forEach(SideChannel::close);
    }

    /** The connections that one process has opened to the other are broken; those the other way are not. */
    void disconnect(MemoryRuntime from, MemoryRuntime to) {
        for (Agent one : from.agents) {
            to.agents.forEach(
                    other -> Optional.ofNullable(one.peers.get(other.name)).ifPresent(TransferAgent.Peer::close));
        }
    }

    /** Loses messages, unnoticed by their senders. */
    void loseMessages(boolean on) {
        losesMessages = on;
    }

    /** Agents have no permits from now on, as NIXL's. */
    void withoutPermits() {
        permits = false;
    }

    /** Agents reach host memory only from now on, as the embedded agent does. */
    void withoutDevices() {
        reachesDevices = false;
    }

    /** Has every write that was done be done again: how many there were. */
    int repeatWrites() {
        List<Move> again = List.copyOf(written);
        again.forEach(Move::repeat);
        return again.size();
    }

    /** Permits that are not closed. */
    int permits(MemoryRuntime of) {
        return of.agents.stream().mapToInt(agent -> agent.permits.size()).sum();
    }

    /** Anyone's message to the agents of a runtime. */
    void inject(MemoryRuntime to, String from, String message) {
        to.agents.forEach(agent ->
                agent.inbox.add(new TransferAgent.Notification(from, message.getBytes(StandardCharsets.UTF_8))));
    }

    /** The side channel of a process at another address. */
    SideChannel sideChannel(String from) {
        return sideChannels.open(from);
    }

    public MemoryRuntime runtime() {
        return new MemoryRuntime();
    }

    private void later(Runnable action) {
        if (held) {
            waiting.add(action);
        } else {
            action.run();
        }
    }

    public final class MemoryRuntime implements ConnectorRuntime {
        private final List<Agent> agents = new ArrayList<>();
        private final List<SideChannel> channels = new ArrayList<>();
        private int allocated;

        /** Memory that was allocated and not closed. */
        int allocated() {
            return allocated;
        }

        @Override
        public TransferAgent transferAgent(JsonFields extra, String host, PeerAccess access) {
            Agent agent = new Agent("agent-" + names++);
            agents.add(agent);
            MemoryNet.this.agents.put(agent.name, agent);
            return agent;
        }

        @Override
        public Memory allocate(long bytes, String purpose) {
            Arena arena = Arena.ofShared();
            Region region = new Region(arena.allocate(bytes, 8), Optional.empty());
            allocated++;
            return new Memory() {
                @Override
                public Region region() {
                    return region;
                }

                @Override
                public void close() {
                    allocated--;
                    arena.close();
                }
            };
        }

        @Override
        public SideChannel sideChannel() {
            channels.add(sideChannels.open("localhost"));
            return channels.getLast();
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
            return MemoryNet.this::later;
        }
    }

    private final class Agent implements TransferAgent {
        private final String name;
        private final List<Region> regions = new ArrayList<>();
        private final Map<Long, List<Span>> permits = new HashMap<>();
        /** The number of begun writes by permit. */
        private final Map<Long, Long> writes = new HashMap<>();

        private final List<Notification> inbox = new ArrayList<>();
        /** The peers by name; all connections to a living agent share one. */
        private final Map<String, Peer> peers = new HashMap<>();

        private Agent(String name) {
            this.name = name;
        }

        @Override
        public String name() {
            return name;
        }

        @Override
        public Registration register(Region region) {
            regions.add(region);
            return () -> regions.remove(region);
        }

        @Override
        public boolean reaches(KvMemory.Device memory) {
            return reachesDevices && RefusingMemory.is(memory.device());
        }

        @Override
        public byte[] metadata() {
            return name.getBytes(StandardCharsets.UTF_8);
        }

        @Override
        public Peer connect(byte[] metadata, Duration timeout) throws TransferException {
            String peer = new String(metadata, StandardCharsets.UTF_8);
            if (!agents.containsKey(peer)) {
                throw new TransferException(peer + " does not answer");
            }
            Peer known = peers.get(peer);
            if (known != null && known.alive()) {
                return known;
            }
            Peer made = new Peer() {
                private boolean closed;

                @Override
                public String name() {
                    return peer;
                }

                @Override
                public boolean alive() {
                    return !closed && agents.containsKey(peer);
                }

                @Override
                public void close() {
                    closed = true;
                }
            };
            peers.put(peer, made);
            return made;
        }

        @Override
        public Transfer start(
                Operation operation, Peer peer, List<Range> ranges, Optional<byte[]> notification, Duration timeout) {
            return move(operation, peer, 0, ranges, notification);
        }

        @Override
        public Transfer write(
                Peer peer, long permit, List<Range> ranges, Optional<byte[]> notification, Duration timeout) {
            return move(Operation.WRITE, peer, permit, ranges, notification);
        }

        private Transfer move(
                Operation operation, Peer peer, long permit, List<Range> ranges, Optional<byte[]> notification) {
            Move move = new Move(this, operation, peer, permit, ranges, notification);
            later(move::run);
            return move;
        }

        @Override
        public Optional<Permit> permit(List<Span> memory) {
            if (!MemoryNet.this.permits) {
                return Optional.empty();
            }
            long token = ++tokens;
            permits.put(token, List.copyOf(memory));
            return Optional.of(new Permit() {
                @Override
                public long token() {
                    return token;
                }

                @Override
                public long writes() {
                    return writes.getOrDefault(token, 0L);
                }

                @Override
                public void close() {
                    permits.remove(token);
                }
            });
        }

        @Override
        public void notify(Peer peer, byte[] message) throws TransferException {
            Agent to = agents.get(peer.name());
            if (to == null || !peer.alive()) {
                throw new TransferException(peer.name() + " is gone");
            }
            notified.add(new String(message, StandardCharsets.UTF_8));
            if (!losesMessages) {
                to.inbox.add(new Notification(name, message));
            }
        }

        @Override
        public List<Notification> takeNotifications() {
            List<Notification> taken = List.copyOf(inbox);
            inbox.clear();
            return taken;
        }

        @Override
        public boolean isGone(String other) {
            Agent agent = agents.get(other);
            return gone.contains(other)
                    || agent != null && isDisconnected(peers.get(other)) && isDisconnected(agent.peers.get(name));
        }

        private static boolean isDisconnected(@Nullable Peer peer) {
            return peer == null || !peer.alive();
        }

        @Override
        public void close() {
            agents.remove(name);
            gone.add(name);
        }

        private MemorySegment at(long address, long bytes) {
            for (Region region : regions) {
                if (holds(region, address, bytes)) {
                    return RefusingMemory.bytes(region.where()).asSlice(address - region.address(), bytes);
                }
            }
            throw new IllegalArgumentException("not registered");
        }

        /** As {@link #at}, for a write of a peer. */
        private MemorySegment at(long address, long bytes, long permit) {
            boolean needed = MemoryNet.this.permits
                    && regions.stream().anyMatch(region -> region.needsPermit() && holds(region, address, bytes));
            if (needed) {
                List<Span> permitted = permits.getOrDefault(permit, List.of());
                for (long byteAt = address; byteAt < address + bytes; byteAt++) {
                    long here = byteAt;
                    if (permitted.stream().noneMatch(each -> each.holds(here, 1))) {
                        throw new IllegalArgumentException("not permitted");
                    }
                }
            }
            return at(address, bytes);
        }

        private static boolean holds(Region region, long address, long bytes) {
            return new Span(region.address(), region.bytes()).holds(address, bytes);
        }
    }

    private final class Move implements Transfer {
        private final Agent own;
        private final TransferAgent.Operation operation;
        private final TransferAgent.Peer peer;
        private final long permit;
        private final List<Range> ranges;
        private final Optional<byte[]> notification;
        private State state = new State.UnderWay();

        private Move(
                Agent own,
                TransferAgent.Operation operation,
                TransferAgent.Peer peer,
                long permit,
                List<Range> ranges,
                Optional<byte[]> notification) {
            this.own = own;
            this.operation = operation;
            this.peer = peer;
            this.permit = permit;
            this.ranges = ranges;
            this.notification = notification;
        }

        private void run() {
            if (!(state instanceof State.UnderWay)) {
                return;
            }
            Agent other = agents.get(peer.name());
            if (other == null || !peer.alive()) {
                state = new State.Failed(Cause.PEER_GONE, peer.name() + " is gone");
                return;
            }
            long bytes = 0;
            try {
                other.writes.merge(permit, 1L, Long::sum);
                for (Range range : ranges) {
                    beforeCopy.run();
                    MemorySegment local = own.at(range.local(), range.bytes());
                    boolean reads = operation == TransferAgent.Operation.READ;
                    MemorySegment remote = reads
                            ? other.at(range.remote(), range.bytes())
                            : other.at(range.remote(), range.bytes(), permit);
                    if (reads) {
                        local.copyFrom(remote);
                    } else {
                        remote.copyFrom(local);
                    }
                    bytes += range.bytes();
                    afterCopy.run();
                }
            } catch (IllegalArgumentException e) {
                state = new State.Failed(Cause.NOT_PERMITTED, String.valueOf(e.getMessage()));
                return;
            }
            notification
                    .filter(_ -> !losesMessages)
                    .ifPresent(message -> other.inbox.add(new TransferAgent.Notification(own.name, message)));
            state = new State.Done(bytes, Duration.ofNanos(1000));
            if (operation == TransferAgent.Operation.WRITE) {
                written.add(this);
            }
        }

        private void repeat() {
            state = new State.UnderWay();
            run();
        }

        @Override
        public State state() {
            return state;
        }

        @Override
        public void cancel() {
            if (state instanceof State.UnderWay) {
                state = new State.Failed(Cause.CANCELLED, "cancelled");
            }
        }
    }
}
