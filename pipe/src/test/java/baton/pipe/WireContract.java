package baton.pipe;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.FreePorts;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.SplittableRandom;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** The contract of wires of every transport. */
public abstract class WireContract {
    protected static final String HOST = "127.0.0.1";
    protected static final Duration LONG = Duration.ofSeconds(60);
    protected static final Duration SHORT = Duration.ofMillis(300);

    private final Arena arena = Arena.ofShared();
    private final List<AutoCloseable> opened = new ArrayList<>();
    private final WireTransport one;
    private final WireTransport other;

    /** One that makes wires to itself. */
    protected WireContract(WireTransport both) {
        this(both, both);
    }

    /** Two transports that make wires to each other. */
    protected WireContract(WireTransport one, WireTransport other) {
        this.one = one;
        this.other = other;
        opened.add(one);
        opened.add(other);
    }

    @AfterEach
    void closeAll() throws Exception {
        for (AutoCloseable each : opened.reversed()) {
            each.close();
        }
        arena.close();
    }

    @Test
    void bytesAreMovedInBothDirectionsAtOnceAndInOrder() throws Exception {
        Wire[] ends = meet();
        int[] sizes = {1, 88, 4096, 3 << 20, 7, 0, 40 << 20};
        List<FutureTask<Boolean>> all = new ArrayList<>();
        for (int own = 0; own < 2; own++) {
            Wire end = ends[own];
            int out = own * 100;
            int in = 100 - out;
            all.add(background(() -> {
                for (int i = 0; i < sizes.length; i++) {
                    end.send(pattern(out + i, sizes[i]), LONG);
                }
                return true;
            }));
            all.add(background(() -> {
                for (int i = 0; i < sizes.length; i++) {
                    MemorySegment into = arena.allocate(Math.max(1, sizes[i])).asSlice(0, sizes[i]);
                    end.receive(into, LONG);
                    assertThat(into.mismatch(pattern(in + i, sizes[i])))
                            .as("message %d of %d bytes", i, sizes[i])
                            .isEqualTo(-1);
                }
                return true;
            }));
        }
        for (FutureTask<Boolean> each : all) {
            assertThat(result(each)).isTrue();
        }
    }

    @Test
    void anOfferedWireIsJoinedByItsId() throws Exception {
        for (int i = 0; i < 3; i++) {
            Wire[] ends = offered();
            assertConnected(ends[i % 2], ends[1 - i % 2]);
        }
    }

    @Test
    void wiresOutliveTheirTransport() throws Exception {
        Wire[] ends = offered();
        one.close();
        other.close();
        assertConnected(ends[0], ends[1]);
        assertThatThrownBy(() -> one.offer(HOST)).isInstanceOf(PipeException.class);
    }

    @Test
    void rankZeroMayComeLast() throws Exception {
        int port = FreePorts.inARow(1);
        FutureTask<Wire> first = background(() -> other.meet(HOST, port, 1, LONG));
        assertThatThrownBy(() -> first.get(200, TimeUnit.MILLISECONDS)).isInstanceOf(TimeoutException.class);
        Wire zero = keep(one.meet(HOST, port, 0, LONG));
        Wire last = keep(result(first));
        assertConnected(last, zero);
    }

    @Test
    void meetingFailsIfThePeerDoesNotComeInTime() throws Exception {
        int port = FreePorts.inARow(1);
        assertThatThrownBy(() -> one.meet(HOST, port, 0, SHORT)).isInstanceOf(PipeException.class);
        assertThatThrownBy(() -> other.meet(HOST, port, 1, SHORT)).isInstanceOf(PipeException.class);
        try (WireTransport.Offer offer = one.offer(HOST)) {
            assertThatThrownBy(() -> offer.accept(SHORT)).isInstanceOf(PipeException.class);
        }
        Wire[] ends = meet(port);
        assertConnected(ends[0], ends[1]);
    }

    @Test
    void aWithdrawnOfferCannotBeJoined() throws Exception {
        WireTransport.Offer offer = one.offer(HOST);
        byte[] id = offer.id();
        FutureTask<Wire> accepting = background(() -> offer.accept(LONG));
        offer.close();
        assertThatThrownBy(() -> result(accepting)).isInstanceOf(PipeException.class);
        assertThatThrownBy(() -> other.join(id, HOST, SHORT)).isInstanceOf(PipeException.class);
    }

    @Test
    void anIdIsShortAndAWrongOneIsRefused() throws Exception {
        try (WireTransport.Offer offer = one.offer(HOST)) {
            byte[] id = offer.id();
            assertThat(id.length).isLessThanOrEqualTo(128);
            assertThatThrownBy(() -> other.join(id, "127.0.0.2", SHORT)).isInstanceOf(PipeException.class);
            assertThatThrownBy(() -> other.join(new byte[0], HOST, SHORT)).isInstanceOf(PipeException.class);
            assertThatThrownBy(() -> other.join(new byte[128], HOST, SHORT)).isInstanceOf(PipeException.class);
            Wire[] ends = take(offer);
            assertConnected(ends[0], ends[1]);
        }
    }

    @Test
    void hostileIdsAreRefusedWithoutConnecting() throws Exception {
        long seed = Long.getLong("tests.seed", System.nanoTime());
        System.out.println("-Dtests.seed=" + seed);
        Random random = new Random(seed);
        try (WireTransport.Offer offer = one.offer(HOST)) {
            byte[] id = offer.id();
            for (int i = 0; i < 200; i++) {
                byte[] bad = Arrays.copyOf(id, random.nextInt(id.length));
                if (bad.length > 0 && random.nextBoolean()) {
                    bad[random.nextInt(bad.length)] ^= (byte) (1 + random.nextInt(255));
                }
                assertThatThrownBy(() -> other.join(bad, HOST, SHORT)).isInstanceOf(PipeException.class);
            }
            Wire[] ends = take(offer);
            assertConnected(ends[0], ends[1]);
        }
    }

    @Test
    void aLookupWithoutEntryInTimeFails() throws Exception {
        Wire[] ends = meet();
        long begun = System.nanoTime();
        assertThatThrownBy(() -> ends[0].receive(arena.allocate(10), SHORT)).isInstanceOf(PipeException.class);
        assertThat(System.nanoTime() - begun).isGreaterThanOrEqualTo(SHORT.toNanos());
    }

    @Test
    void aSendThatThePeerDoesNotTakeInTimeFails() throws Exception {
        Wire[] ends = meet();
        MemorySegment much = arena.allocate(64 << 20);
        assertThatThrownBy(() -> ends[0].send(much, SHORT)).isInstanceOf(PipeException.class);
        assertThatThrownBy(() -> ends[1].receive(arena.allocate(64 << 20), LONG))
                .isInstanceOf(PipeException.class);
    }

    @Test
    void closingEndsWaitsOnBothSides() throws Exception {
        for (boolean firstCloses : new boolean[] {true, false}) {
            Wire[] ends = meet();
            Wire closed = ends[firstCloses ? 0 : 1];
            Wire left = ends[firstCloses ? 1 : 0];
            FutureTask<Boolean> receiving = background(() -> {
                ends[0].receive(arena.allocate(1 << 20), LONG);
                return true;
            });
            FutureTask<Boolean> sending = background(() -> {
                ends[0].send(arena.allocate(64 << 20), LONG);
                return true;
            });
            assertThatThrownBy(() -> receiving.get(100, TimeUnit.MILLISECONDS)).isInstanceOf(TimeoutException.class);
            closed.close();
            assertThatThrownBy(() -> result(receiving)).isInstanceOf(PipeException.class);
            assertThatThrownBy(() -> result(sending)).isInstanceOf(PipeException.class);
            assertThatThrownBy(() -> closed.send(arena.allocate(10), LONG)).isInstanceOf(PipeException.class);
            assertThatThrownBy(() -> closed.receive(arena.allocate(10), LONG)).isInstanceOf(PipeException.class);
            assertThatThrownBy(() -> left.receive(arena.allocate(64 << 20), LONG))
                    .isInstanceOf(PipeException.class);
        }
    }

    protected final void assertConnected(Wire from, Wire to) throws Exception {
        FutureTask<Boolean> sending = background(() -> {
            from.send(pattern(1, 100), LONG);
            return true;
        });
        MemorySegment into = arena.allocate(100);
        to.receive(into, LONG);
        assertThat(into.mismatch(pattern(1, 100))).isEqualTo(-1);
        assertThat(result(sending)).isTrue();
    }

    protected final Wire[] meet() throws Exception {
        return meet(FreePorts.inARow(1));
    }

    private Wire[] meet(int port) throws Exception {
        FutureTask<Wire> joining = background(() -> other.meet(HOST, port, 1, LONG));
        Wire first = keep(one.meet(HOST, port, 0, LONG));
        return new Wire[] {first, keep(result(joining))};
    }

    protected final Wire[] offered() throws Exception {
        try (WireTransport.Offer offer = one.offer(HOST)) {
            return take(offer);
        }
    }

    private Wire[] take(WireTransport.Offer offer) throws Exception {
        FutureTask<Wire> joining = background(() -> other.join(offer.id(), HOST, LONG));
        Wire first = keep(offer.accept(LONG));
        return new Wire[] {first, keep(result(joining))};
    }

    protected final Wire keep(Wire wire) {
        opened.add(wire);
        return wire;
    }

    private MemorySegment pattern(long seed, int bytes) {
        byte[] content = new byte[bytes];
        new SplittableRandom(seed).nextBytes(content);
        MemorySegment pattern = arena.allocate(Math.max(1, bytes)).asSlice(0, bytes);
        return pattern.copyFrom(MemorySegment.ofArray(content));
    }

    /** Runs an action on a thread of its own. */
    public static <T> FutureTask<T> background(Callable<T> action) {
        FutureTask<T> task = new FutureTask<>(action);
        Thread.ofPlatform().daemon().start(task);
        return task;
    }

    /** The result of the task, or its exception. */
    public static <T> T result(FutureTask<T> task) throws Exception {
        try {
            return task.get(LONG.toSeconds() * 2, TimeUnit.SECONDS);
        } catch (ExecutionException e) {
            if (e.getCause() instanceof Exception cause) {
                throw cause;
            }
            throw e;
        }
    }
}
