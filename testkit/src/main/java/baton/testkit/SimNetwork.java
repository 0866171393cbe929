package baton.testkit;

import baton.kv.Ticker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.PriorityQueue;
import java.util.TreeMap;
import java.util.function.BooleanSupplier;
import java.util.function.IntConsumer;
import java.util.random.RandomGenerator;

/*
 * Guarantees, whatever the faults:
 *
 *   A one-sided read is over when its deadline has passed, done or failed; then it touches neither side's memory. Nothing else
 *   ends it early but its cancellation and the end of one of its endpoints.
 *   An endpoint that is closed sends nothing more and its memory is not touched again. Messages that it sent before still arrive,
 *   also at the endpoint that later takes its peer's name.
 *
 *   Messages sent in order arrive once, whole and in order, unless their receiver ends before.
 *
 * Everything else may go wrong: messages get lost, are late, come twice, overtake each other or are corrupt; reads fail halfway,
 * hang until their deadline, bring corrupt bytes, or read the memory of a peer that has come back under the same name.
 *
 * One thread uses it. Things happen in poll(), in the order of their time.
 */

/**
 * A network in memory, with the caller's clock and randomness: messages between named endpoints, and one-sided reads of an
 * endpoint's registered memory. The same clock, the same randomness and the same calls give the same faults.
 */
public final class SimNetwork {
    /**
     * The probabilities of faults.
     *
     * @param lost a message does not arrive
     * @param duplicated a message arrives twice
     * @param late a message or a read takes 40 times as long
     * @param corruptMessage a byte of a message is wrong
     * @param failed a read ends halfway
     * @param hangs a read ends with its deadline only
     * @param corruptRead a byte that was read is wrong
     * @param unchecked a read of a peer's earlier life reads from the life it has now
     */
    public record Faults(
            double lost,
            double duplicated,
            double late,
            double corruptMessage,
            double failed,
            double hangs,
            double corruptRead,
            double unchecked) {
        public static final Faults NONE = new Faults(0, 0, 0, 0, 0, 0, 0, 0);
    }

    /** One range of a read, in bytes: offsets in the reader's and in the peer's memory. */
    public record Range(long local, long remote, long bytes) {}

    /** Where a read is. */
    public enum ReadState {
        UNDER_WAY,
        DONE,
        /** Over; some ranges may have been copied. */
        FAILED
    }

    private record Event(long nanos, long order, Runnable action) {}

    private static final int LATE = 40;

    private final Ticker ticker;
    private final RandomGenerator random;
    private Faults faults;
    private final long leastNanos;
    private final long mostNanos;
    private final Map<String, Endpoint> endpoints = new HashMap<>();
    private final PriorityQueue<Event> events =
            new PriorityQueue<>(Comparator.comparingLong(Event::nanos).thenComparingLong(Event::order));
    private final List<Read> underWay = new ArrayList<>();
    private final Map<String, Long> injected = new TreeMap<>();
    private long order;

    /**
     * @param least time that a message or a read takes
     * @param most time that it takes unless it is late
     */
    public SimNetwork(Ticker ticker, RandomGenerator random, Faults faults, Duration least, Duration most) {
        this.ticker = ticker;
        this.random = random;
        this.faults = faults;
        this.leastNanos = least.toNanos();
        this.mostNanos = most.toNanos();
    }

    /**
     * A place on the network with memory that others may read.
     *
     * @param epoch tells this life of the name from earlier ones
     * @throws IllegalStateException if the name is taken
     */
    public Endpoint open(String name, long epoch, MemorySegment memory) {
        Endpoint endpoint = new Endpoint(name, epoch, memory);
        if (endpoints.putIfAbsent(name, endpoint) != null) {
            throw new IllegalStateException("name=" + name + " is taken");
        }
        return endpoint;
    }

    /** Ends the faults that have not begun. */
    public void calm() {
        faults = Faults.NONE;
    }

    /** How many faults of each kind there were so far. */
    public Map<String, Long> injected() {
        return Map.copyOf(injected);
    }

    /** Lets everything happen that is due. */
    public void poll() {
        while (!events.isEmpty() && events.element().nanos() - ticker.nanos() <= 0) {
            events.remove().action().run();
        }
    }

    /** True while a read takes bytes from that range of the endpoint's memory. */
    public boolean isRead(Endpoint owner, long from, long bytes) {
        for (Read read : underWay) {
            if (read.peer.filter(peer -> peer == owner).isPresent()) {
                for (Range range : read.ranges) {
                    if (range.remote() < from + bytes && from < range.remote() + range.bytes()) {
                        return true;
                    }
                }
            }
        }
        return false;
    }

    /** True while a read puts bytes into that memory. */
    public boolean isWritten(MemorySegment memory) {
        for (Read read : underWay) {
            for (Range range : read.ranges) {
                long start = read.reader.memory.address() + range.local();
                if (start < memory.address() + memory.byteSize() && memory.address() < start + range.bytes()) {
                    return true;
                }
            }
        }
        return false;
    }

    /** A life of a name on the network. */
    public final class Endpoint implements AutoCloseable {
        private final String name;
        private final long epoch;
        private final MemorySegment memory;
        private final Deque<byte[]> inbox = new ArrayDeque<>();
        private final Map<String, Long> latestArrivals = new HashMap<>();
        private boolean open = true;

        private Endpoint(String name, long epoch, MemorySegment memory) {
            this.name = name;
            this.epoch = epoch;
            this.memory = memory;
        }

        public String name() {
            return name;
        }

        public long epoch() {
            return epoch;
        }

        /** Sends to the endpoint that has that name when the message arrives. */
        public void send(String to, byte[] message) {
            int copies =
                    happens("message lost", faults.lost) ? 0 : happens("message duplicated", faults.duplicated) ? 2 : 1;
            for (int copy = 0; copy < copies; copy++) {
                byte[] bytes = message.clone();
                if (happens("message corrupt", faults.corruptMessage)) {
                    bytes[random.nextInt(bytes.length)] ^= (byte) (1 << random.nextInt(8));
                }
                at(ticker.nanos() + latency(), () -> {
                    Endpoint receiver = endpoints.get(to);
                    if (receiver != null) {
                        receiver.inbox.add(bytes);
                    }
                });
            }
        }

        /**
         * Sends as over a connection: to the endpoint that has that name when the message arrives, once, whole and in order.
         *
         * @param whole asked then: the connection has not broken
         */
        public void sendInOrder(String to, byte[] message, BooleanSupplier whole) {
            byte[] bytes = message.clone();
            long arrival = ticker.nanos() + latency();
            Long latest = latestArrivals.get(to);
            if (latest != null && latest - arrival > 0) {
                arrival = latest;
            }
            latestArrivals.put(to, arrival);
            at(arrival, () -> {
                Endpoint receiver = endpoints.get(to);
                if (receiver != null && whole.getAsBoolean()) {
                    receiver.inbox.add(bytes);
                }
            });
        }

        /** Ends a read of this endpoint, unless it is over. */
        public void cancel(Read read) {
            if (read.reader == this && read.state == ReadState.UNDER_WAY) {
                read.state = ReadState.FAILED;
                underWay.remove(read);
            }
        }

        /** The next message that has arrived. */
        public Optional<byte[]> receive() {
            return Optional.ofNullable(inbox.poll());
        }

        /**
         * Starts to copy ranges of a peer's memory into this endpoint's. Each range is copied at a time of its own.
         *
         * @param deadlineNanos on the network's ticker: when this time has come the read is over, well or badly
         * @param placed told of each range, by its index, when its bytes are in place, be the read done in the end or not
         */
        public Read read(String peer, long peerEpoch, List<Range> ranges, long deadlineNanos, IntConsumer placed) {
            long now = ticker.nanos();
            Optional<Endpoint> found = Optional.ofNullable(endpoints.get(peer))
                    .filter(endpoint ->
                            endpoint.epoch == peerEpoch || happens("read of another life", faults.unchecked));
            Read read = new Read(this, found, ranges);
            boolean hangs = happens("read hangs", faults.hangs);
            long end = Math.min(now + latency(), deadlineNanos);
            boolean intime =
                    !hangs && end < deadlineNanos && found.isPresent() && !happens("read failed", faults.failed);
            int copied = intime ? ranges.size() : random.nextInt(ranges.size() + 1);
            underWay.add(read);
            for (int i = 0; i < copied; i++) {
                int index = i;
                at(now + (long) ((end - now) * random.nextDouble()), () -> {
                    if (copy(read, ranges.get(index))) {
                        placed.accept(index);
                    }
                });
            }
            at(hangs ? deadlineNanos : end, () -> {
                if (read.state == ReadState.UNDER_WAY) {
                    underWay.remove(read);
                    boolean whole = intime && found.orElseThrow().open;
                    read.state = whole ? ReadState.DONE : ReadState.FAILED;
                }
            });
            return read;
        }

        /** Ends this life: its reads, and those that others do here. */
        @Override
        public void close() {
            if (open) {
                open = false;
                endpoints.remove(name);
                for (Read read : List.copyOf(underWay)) {
                    if (read.reader == this) {
                        read.state = ReadState.FAILED;
                        underWay.remove(read);
                    }
                }
            }
        }

        private boolean copy(Read read, Range range) {
            Endpoint from = read.peer.orElse(this);
            boolean possible = read.state == ReadState.UNDER_WAY && from != this && from.open;
            if (possible) {
                move(from, range);
            }
            return possible;
        }

        private void move(Endpoint from, Range range) {
            MemorySegment.copy(from.memory, range.remote(), memory, range.local(), range.bytes());
            if (happens("read corrupt", faults.corruptRead)) {
                long at = range.local() + random.nextLong(range.bytes());
                byte was = memory.get(ValueLayout.JAVA_BYTE, at);
                memory.set(ValueLayout.JAVA_BYTE, at, (byte) (was ^ (1 << random.nextInt(8))));
            }
        }
    }

    /** A one-sided read. */
    public static final class Read {
        private final Endpoint reader;
        private final Optional<Endpoint> peer;
        private final List<Range> ranges;
        private ReadState state = ReadState.UNDER_WAY;

        private Read(Endpoint reader, Optional<Endpoint> peer, List<Range> ranges) {
            this.reader = reader;
            this.peer = peer;
            this.ranges = List.copyOf(ranges);
        }

        public ReadState state() {
            return state;
        }
    }

    private void at(long nanos, Runnable action) {
        events.add(new Event(nanos, order++, action));
    }

    private long latency() {
        long nanos = random.nextLong(leastNanos, mostNanos + 1);
        return happens("late", faults.late) ? nanos * LATE : nanos;
    }

    private boolean happens(String fault, double probability) {
        boolean now = probability > 0 && random.nextDouble() < probability;
        if (now) {
            injected.merge(fault, 1L, Long::sum);
        }
        return now;
    }
}
