package baton.testkit;

import baton.kv.KvMemory;
import baton.kv.Ticker;
import baton.memory.RunDigests;
import baton.transfer.Range;
import baton.transfer.Region;
import baton.transfer.Transfer;
import baton.transfer.Transfer.Cause;
import baton.transfer.Transfer.State;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.IntConsumer;
import java.util.random.RandomGenerator;
import java.util.zip.CRC32C;

/**
 * A transfer agent over {@link SimNetwork}: it moves bytes in the network's time and with the faults of its reads. Notifications
 * come late but in order. Digests are computed range after range, when the bytes are in place: also of a transfer that then fails,
 * and with a corrupt byte where the network put one. One thread uses all agents of a network.
 */
public final class SimTransferAgent implements TransferAgent {
    private static final int MAGIC = 0x53696d54;
    private static final long ONLY_LIFE = 0;

    private final AgentNetwork agentNetwork;
    private final String name;
    private final SimNetwork.Endpoint endpoint;
    private final TreeMap<Long, Region> regions = new TreeMap<>();
    private final Map<String, SimPeer> peers = new LinkedHashMap<>();
    private final Map<Long, SimPermit> permits = new HashMap<>();
    private final List<SimTransfer> underWay = new ArrayList<>();
    private boolean open = true;

    /** All agents of a network. */
    public static final class AgentNetwork {
        private final SimNetwork network;
        private final Ticker ticker;
        private final Map<String, SimTransferAgent> agents = new LinkedHashMap<>();
        private int opened;
        private long permits;
        private RandomGenerator digestRandom = RandomGenerator.getDefault();
        private double digestFaults;
        private final Map<String, Long> injected = new TreeMap<>();

        /** @param ticker the network's */
        public AgentNetwork(SimNetwork network, Ticker ticker) {
            this.network = network;
            this.ticker = ticker;
        }

        /**
         * From now on some transfers that are to digest do not, as the interface allows, and some digests are of bytes that were in a range
         * before the last of it came.
         *
         * @param probability of the first for each transfer, of the second for each range
         */
        public void disturbDigests(RandomGenerator random, double probability) {
            digestRandom = random;
            digestFaults = probability;
        }

        /** How many faults of each kind there were so far, the network's left out. */
        public Map<String, Long> injected() {
            return Map.copyOf(injected);
        }

        private boolean happens(String fault) {
            boolean now = digestFaults > 0 && digestRandom.nextDouble() < digestFaults;
            if (now) {
                injected.merge(fault, 1L, Long::sum);
            }
            return now;
        }

        /** Opens an agent with a name that begins so. */
        public SimTransferAgent open(String prefix) {
            SimTransferAgent agent = new SimTransferAgent(this, prefix + "-" + ++opened);
            agents.put(agent.name, agent);
            return agent;
        }

        /** Lets everything happen that is due, in the network too. */
        public void poll() {
            network.poll();
            agents.values().forEach(SimTransferAgent::settle);
        }

        /**
         * Breaks one of the connections that agents have opened to each other, with the data on its way; a connection that the other agent
         * has opened to this one does not break.
         *
         * @return the names of the agent that opened it and of the other; empty if there is none
         */
        public Optional<Map.Entry<String, String>> breakConnection(RandomGenerator random) {
            List<SimPeer> open = agents.values().stream()
                    .flatMap(agent -> agent.peers.values().stream())
                    .filter(SimPeer::alive)
                    .toList();
            if (open.isEmpty()) {
                return Optional.empty();
            }
            SimPeer broken = open.get(random.nextInt(open.size()));
            broken.breakOff();
            return Optional.of(Map.entry(broken.opener().name, broken.name()));
        }

        /** Ends the transfers that need a region or a permit. */
        private void end(Object part, Cause cause, String why) {
            for (SimTransferAgent agent : agents.values()) {
                for (SimTransfer transfer : List.copyOf(agent.underWay)) {
                    if (transfer.touches(part)) {
                        transfer.fail(cause, why);
                    }
                }
            }
        }
    }

    private SimTransferAgent(AgentNetwork agentNetwork, String name) {
        this.agentNetwork = agentNetwork;
        this.name = name;
        // Its offsets are addresses; access is checked here.
        MemorySegment everything = MemorySegment.NULL.reinterpret(Long.MAX_VALUE);
        this.endpoint = agentNetwork.network.open(name, ONLY_LIFE, everything);
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public Registration register(Region region) throws TransferException {
        requireOpen();
        long start = region.address();
        Map.Entry<Long, Region> before = regions.floorEntry(start + region.bytes() - 1);
        if (before != null && before.getKey() + before.getValue().bytes() > start) {
            throw new TransferException("memory at %d is registered already, in part at least".formatted(start));
        }
        regions.put(start, region);
        return () -> {
            if (regions.remove(start, region)) {
                agentNetwork.end(region, Cause.REFUSED, "the memory's registration was closed");
            }
        };
    }

    @Override
    public boolean reaches(KvMemory.Device memory) {
        return RefusingMemory.is(memory.device());
    }

    /** Where bytes of a region are in this process. */
    private static long real(Region region, long address) {
        return RefusingMemory.bytes(region.where()).address() + address - region.address();
    }

    @Override
    public byte[] metadata() {
        byte[] text = name.getBytes(StandardCharsets.UTF_8);
        return ByteBuffer.allocate(2 * Integer.BYTES + text.length)
                .putInt(MAGIC)
                .putInt(text.length)
                .put(text)
                .array();
    }

    @Override
    public Peer connect(byte[] metadata, Duration timeout) throws TransferException {
        requireOpen();
        ByteBuffer in = ByteBuffer.wrap(metadata);
        if (in.remaining() < 2 * Integer.BYTES || in.getInt() != MAGIC || in.getInt() != in.remaining()) {
            throw new TransferException("metadata of %d bytes is not of a simulated agent".formatted(metadata.length));
        }
        String wanted = StandardCharsets.UTF_8.decode(in).toString();
        SimPeer known = peers.get(wanted);
        if (known != null && known.alive()) {
            return known;
        }
        SimTransferAgent agent = agentNetwork.agents.get(wanted);
        if (agent == null || agent == this) {
            throw new TransferException("no other agent is named " + wanted);
        }
        SimPeer peer = new SimPeer(agent);
        peers.put(wanted, peer);
        return peer;
    }

    @Override
    public Transfer start(
            Operation operation, Peer peer, List<Range> ranges, Optional<byte[]> notification, Duration timeout) {
        SimTransfer transfer = new SimTransfer(operation, peer, 0, ranges, notification, timeout);
        transfer.begin(_ -> {});
        return transfer;
    }

    @Override
    public Transfer start(
            Operation operation,
            Peer peer,
            List<Range> ranges,
            Optional<byte[]> notification,
            Duration timeout,
            RunDigests digests) {
        SimTransfer transfer = new SimTransfer(operation, peer, 0, ranges, notification, timeout);
        if (ranges.stream().anyMatch(range -> range.bytes() != digests.bytes())) {
            transfer.fail(Cause.REFUSED, "ranges to be digested must have %d bytes each".formatted(digests.bytes()));
            return transfer;
        }
        boolean none = agentNetwork.happens("nothing digested");
        transfer.begin(index -> {
            if (!none) {
                int[] crc32c = digest(destination(operation, ranges.get(index)), digests);
                if (agentNetwork.happens("digest too early")) {
                    crc32c[0] = ~crc32c[0];
                }
                digests.listener().digested(index, crc32c);
            }
        });
        return transfer;
    }

    /** All agents are of one process, so an address is good for any. */
    private static MemorySegment destination(Operation operation, Range range) {
        long address = switch (operation) {
            case READ -> range.local();
            case WRITE -> range.remote();
        };
        return MemorySegment.ofAddress(address).reinterpret(range.bytes());
    }

    private static int[] digest(MemorySegment range, RunDigests digests) {
        int[] crc32c = new int[digests.runs()];
        for (int run = 0; run < crc32c.length; run++) {
            CRC32C crc = new CRC32C();
            for (int row = 0; row < digests.rows(); row++) {
                long at = ((long) row * digests.runs() + run) * digests.runBytes();
                crc.update(range.asSlice(at, digests.runBytes()).toArray(ValueLayout.JAVA_BYTE));
            }
            crc32c[run] = (int) crc.getValue();
        }
        return crc32c;
    }

    @Override
    public Transfer write(Peer peer, long permit, List<Range> ranges, Optional<byte[]> notification, Duration timeout) {
        SimTransfer transfer = new SimTransfer(Operation.WRITE, peer, permit, ranges, notification, timeout);
        transfer.begin(_ -> {});
        return transfer;
    }

    @Override
    public Optional<Permit> permit(List<Span> memory) {
        // So that worlds of the same seed are the same, these are not random.
        SimPermit permit = new SimPermit(++agentNetwork.permits * 0x9E3779B97F4A7C15L, List.copyOf(memory));
        permits.put(permit.token, permit);
        return Optional.of(permit);
    }

    @Override
    public void notify(Peer peer, byte[] message) throws TransferException {
        if (!(peer instanceof SimPeer sim) || !sim.isOf(this)) {
            throw new TransferException("peer=%s is not a peer of agent %s".formatted(peer.name(), name));
        }
        if (!sim.alive()) {
            throw new TransferException("peer %s is gone".formatted(peer.name()));
        }
        byte[] from = name.getBytes(StandardCharsets.UTF_8);
        endpoint.sendInOrder(
                peer.name(),
                ByteBuffer.allocate(Integer.BYTES + from.length + message.length)
                        .putInt(from.length)
                        .put(from)
                        .put(message)
                        .array(),
                () -> !sim.broken);
    }

    @Override
    public List<Notification> takeNotifications() {
        settle();
        List<Notification> taken = new ArrayList<>();
        for (Optional<byte[]> next = endpoint.receive(); next.isPresent(); next = endpoint.receive()) {
            byte[] bytes = next.get();
            int end = Integer.BYTES + ByteBuffer.wrap(bytes).getInt();
            taken.add(new Notification(
                    new String(bytes, Integer.BYTES, end - Integer.BYTES, StandardCharsets.UTF_8),
                    Arrays.copyOfRange(bytes, end, bytes.length)));
        }
        return taken;
    }

    @Override
    public boolean isGone(String other) {
        SimTransferAgent agent = agentNetwork.agents.get(other);
        return agent == null || !isConnected(other) && !agent.isConnected(name);
    }

    /** Whether this agent has opened a connection to the other. */
    private boolean isConnected(String other) {
        SimPeer peer = peers.get(other);
        return peer != null && peer.alive();
    }

    @Override
    public void close() {
        if (!open) {
            return;
        }
        open = false;
        List.copyOf(underWay).forEach(each -> each.fail(Cause.CANCELLED, "the agent was closed"));
        agentNetwork.agents.remove(name);
        endpoint.close();
        agentNetwork.agents.values().forEach(SimTransferAgent::settle);
    }

    /** Ends the transfers that are over, and notifies the peers. */
    private void settle() {
        List.copyOf(underWay).forEach(SimTransfer::settle);
    }

    private Optional<Region> region(long address, long bytes) {
        Map.Entry<Long, Region> entry = regions.floorEntry(address);
        return Optional.ofNullable(entry)
                .map(Map.Entry::getValue)
                .filter(region -> address - region.address() <= region.bytes() - bytes);
    }

    /** Why a write to memory of this agent is refused. */
    private Optional<String> refusal(Region region, long token, long address, long bytes) {
        if (token == 0) {
            return region.needsPermit() ? Optional.of("the memory needs a permit") : Optional.empty();
        }
        SimPermit permit = permits.get(token);
        if (permit == null) {
            return Optional.of("permit %016x is closed, or is none of agent %s".formatted(token, name));
        }
        return permit.holds(address, bytes) ? Optional.empty() : Optional.of("the permit is for other memory");
    }

    private final class SimPermit implements Permit {
        private final long token;
        private final List<Span> memory;
        private long writes;

        private SimPermit(long token, List<Span> memory) {
            this.token = token;
            this.memory = memory;
        }

        private boolean holds(long address, long bytes) {
            long held = address;
            for (boolean more = true; more && held < address + bytes; ) {
                more = false;
                for (Span each : memory) {
                    long end = each.address() + each.bytes();
                    if (each.address() <= held && held < end) {
                        held = end;
                        more = true;
                    }
                }
            }
            return held >= address + bytes;
        }

        @Override
        public long token() {
            return token;
        }

        @Override
        public long writes() {
            return writes;
        }

        @Override
        public void close() {
            permits.remove(token);
            agentNetwork.end(this, Cause.NOT_PERMITTED, "the permit was closed");
        }
    }

    private void requireOpen() throws TransferException {
        if (!open) {
            throw new TransferException("agent " + name + " is closed");
        }
    }

    private final class SimPeer implements Peer {
        private final SimTransferAgent agent;
        private boolean closed;
        private boolean broken;

        private SimPeer(SimTransferAgent agent) {
            this.agent = agent;
        }

        private boolean isOf(SimTransferAgent asked) {
            return asked == SimTransferAgent.this;
        }

        @Override
        public String name() {
            return agent.name;
        }

        @Override
        public boolean alive() {
            return !closed && open && agent.open;
        }

        private SimTransferAgent opener() {
            return SimTransferAgent.this;
        }

        private void breakOff() {
            broken = true;
            end(Cause.PEER_GONE, "the connection broke");
        }

        @Override
        public void close() {
            end(Cause.CANCELLED, "the peer was closed");
        }

        private void end(Cause cause, String why) {
            closed = true;
            for (SimTransfer transfer : List.copyOf(underWay)) {
                if (transfer.peer == this) {
                    transfer.fail(cause, why);
                }
            }
        }
    }

    /** A read of the network by the agent with the memory that changes. */
    private final class SimTransfer implements Transfer {
        private final Operation operation;
        private final Peer peer;
        private final long permit;
        private final List<Range> ranges;
        private final Optional<byte[]> notification;
        private final Duration timeout;
        private final List<Object> touched = new ArrayList<>();
        private final long begun = agentNetwork.ticker.nanos();
        private Optional<Moved> moved = Optional.empty();
        private State state = new State.UnderWay();

        private record Moved(SimNetwork.Endpoint reader, SimNetwork.Read read) {}

        private SimTransfer(
                Operation operation,
                Peer peer,
                long permit,
                List<Range> ranges,
                Optional<byte[]> notification,
                Duration timeout) {
            this.operation = operation;
            this.peer = peer;
            this.permit = permit;
            this.ranges = List.copyOf(ranges);
            this.notification = notification.map(byte[]::clone);
            this.timeout = timeout;
        }

        /** @param placed notified of each range that is in place */
        private void begin(IntConsumer placed) {
            if (!(peer instanceof SimPeer sim) || !sim.isOf(SimTransferAgent.this)) {
                fail(Cause.REFUSED, "peer=%s is not a peer of agent %s".formatted(peer.name(), name));
                return;
            }
            if (!sim.alive()) {
                fail(Cause.PEER_GONE, "peer %s is gone".formatted(peer.name()));
                return;
            }
            List<SimNetwork.Range> pieces = new ArrayList<>();
            for (Range range : ranges) {
                Optional<Region> local = region(range.local(), range.bytes());
                Optional<Region> remote = sim.agent.region(range.remote(), range.bytes());
                if (local.isEmpty() || remote.isEmpty()) {
                    fail(Cause.REFUSED, range + " is not registered memory of both sides");
                    return;
                }
                Optional<String> refusal = operation == Operation.READ
                        ? Optional.empty()
                        : sim.agent.refusal(remote.get(), permit, range.remote(), range.bytes());
                if (refusal.isPresent()) {
                    fail(Cause.NOT_PERMITTED, range + ": " + refusal.get());
                    return;
                }
                touched.add(local.get());
                touched.add(remote.get());
                long here = real(local.get(), range.local());
                long there = real(remote.get(), range.remote());
                pieces.add(
                        switch (operation) {
                            case READ -> new SimNetwork.Range(here, there, range.bytes());
                            case WRITE -> new SimNetwork.Range(there, here, range.bytes());
                        });
            }
            Optional.ofNullable(sim.agent.permits.get(permit)).ifPresent(named -> {
                named.writes++;
                touched.add(named);
            });
            SimNetwork.Endpoint reader = operation == Operation.READ ? endpoint : sim.agent.endpoint;
            SimNetwork.Endpoint read = operation == Operation.READ ? sim.agent.endpoint : endpoint;
            moved = Optional.of(new Moved(
                    reader,
                    reader.read(read.name(), ONLY_LIFE, pieces, begun + Math.max(1, timeout.toNanos()), placed)));
            underWay.add(this);
        }

        private boolean touches(Object part) {
            return touched.contains(part);
        }

        private void settle() {
            if (!(state instanceof State.UnderWay) || moved.isEmpty()) {
                return;
            }
            if (!peer.alive()) {
                fail(Cause.PEER_GONE, "peer %s is gone".formatted(peer.name()));
                return;
            }
            switch (moved.get().read().state()) {
                case UNDER_WAY -> {}
                case DONE -> {
                    underWay.remove(this);
                    state = new State.Done(
                            ranges.stream().mapToLong(Range::bytes).sum(),
                            Duration.ofNanos(agentNetwork.ticker.nanos() - begun));
                    notification.ifPresent(message -> {
                        try {
                            SimTransferAgent.this.notify(peer, message);
                        } catch (TransferException e) {
                            state = new State.Failed(Cause.PEER_GONE, String.valueOf(e.getMessage()));
                        }
                    });
                }
                case FAILED -> {
                    boolean late = agentNetwork.ticker.nanos() - begun >= timeout.toNanos();
                    fail(
                            late ? Cause.TIMEOUT : Cause.TRANSPORT,
                            late ? "not done after " + timeout : "the read failed");
                }
            }
        }

        private void fail(Cause cause, String message) {
            if (state instanceof State.UnderWay) {
                moved.ifPresent(each -> each.reader().cancel(each.read()));
                underWay.remove(this);
                state = new State.Failed(cause, message);
            }
        }

        @Override
        public State state() {
            settle();
            return state;
        }

        @Override
        public void cancel() {
            settle();
            fail(Cause.CANCELLED, "cancelled");
        }
    }
}
