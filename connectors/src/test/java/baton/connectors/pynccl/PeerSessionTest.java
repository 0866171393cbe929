package baton.connectors.pynccl;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.JsonFields;
import baton.kv.KvMemory;
import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.pipe.LookupBuffer;
import baton.pipe.PipeException;
import baton.pipe.TensorBytes;
import baton.pipe.TensorMemory;
import baton.pipe.Wire;
import baton.pipe.WireTransport;
import baton.pipe.memory.MemoryTransport;
import baton.testkit.Await;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.slf4j.event.Level;

@Timeout(300)
class PeerSessionTest {
    private static final Duration SOON = Duration.ofSeconds(60);
    private static final KvMemory POOL = new KvMemory.Host(MemorySegment.ofArray(new byte[1 << 20]), Optional.empty());

    private final MemoryTransport wires = new MemoryTransport();

    private static PyNcclSettings settings(boolean producer) {
        return settings(producer, PeerAccess.of(JsonFields.empty("extra"), "kv_ip", "127.0.0.1", List.of()));
    }

    private static PyNcclSettings settings(boolean producer, PeerAccess access) {
        return new PyNcclSettings(
                producer, producer ? 0 : 1, "host", 7, 1 << 20, "memory", access, SOON, SOON, SOON, SOON, SOON);
    }

    private static PeerSession session(PyNcclSettings settings, WireTransport transport) {
        return new PeerSession(settings, transport, 7, "kv=test", Level.WARN, Ticker.system());
    }

    private static PeerSession started(boolean producer, WireTransport transport) {
        PeerSession session = session(settings(producer), transport);
        TensorMemory _ = session.start(POOL);
        return session;
    }

    @Test
    void peersWithDifferentSecretsDoNotConnect(@TempDir Path directory) throws Exception {
        PeerAccess one = secret(directory, "one");
        PeerAccess two = secret(directory, "two");
        try (PeerSession producer = started(true, one);
                PeerSession stranger = started(false, two)) {
            Await.until(SOON, () -> "no stranger is refused", () -> {
                assertThat(stranger.await(Duration.ofMillis(50))).isEmpty();
                return one.takeRefused() > 0;
            });
            assertThat(producer.await(Duration.ofMillis(1))).isEmpty();
        }
        try (PeerSession producer = started(true, one);
                PeerSession consumer = started(false, one)) {
            assertThat(consumer.await(SOON)).isPresent();
            assertThat(producer.await(SOON)).isPresent();
        }
    }

    private PeerSession started(boolean producer, PeerAccess access) {
        PeerSession session = session(settings(producer, access), Borrowed.of(wires));
        TensorMemory _ = session.start(POOL);
        return session;
    }

    private static PeerAccess secret(Path directory, String name) throws IOException {
        Path file = Files.writeString(directory.resolve(name), name.repeat(8));
        return PeerAccess.of(
                JsonFields.parse("extra", "{\"kv_auth_secret_file\": \"" + file + "\"}"),
                "kv_ip",
                "127.0.0.1",
                List.of());
    }

    /** A thread that learns late that its wire has ended does not end the connection that was made meanwhile. */
    @Test
    void theLateEndOfAnEarlierConnectionDoesNotEndTheCurrentOne() throws Exception {
        Slow slow = new Slow(wires);
        try (PeerSession producer = started(true, slow)) {
            PeerSession first = started(false, Borrowed.of(wires));
            LookupBuffer before = producer.await(SOON).orElseThrow();
            first.close();
            Thread late = slow.late.poll(SOON.toSeconds(), TimeUnit.SECONDS);
            assertThat(late).isNotNull();
            try (PeerSession second = started(false, Borrowed.of(wires))) {
                assertThat(second.await(SOON)).isPresent();
                LookupBuffer after = another(producer, before);
                slow.released.countDown();
                assertThat(late.join(SOON)).isTrue();
                assertThat(producer.isUp(after)).isTrue();
            }
        }
    }

    private static LookupBuffer another(PeerSession session, LookupBuffer before) {
        long end = System.nanoTime() + SOON.toNanos();
        while (System.nanoTime() < end) {
            Optional<LookupBuffer> now = session.await(SOON).filter(each -> !each.equals(before));
            if (now.isPresent()) {
                return now.get();
            }
            Thread.onSpinWait();
        }
        throw new AssertionError("not connected anew");
    }

    @Test
    void aSessionThatWasNeverStartedCanBeClosed() {
        PeerSession session = session(settings(true), wires);
        session.close();
        assertThat(session.await(SOON)).isEmpty();
    }

    /** Wires of which the first one reports its end to its receiver only when the test allows it. */
    private static final class Slow implements WireTransport {
        private final WireTransport wires;
        private final LinkedBlockingQueue<Thread> late = new LinkedBlockingQueue<>();
        private final CountDownLatch released = new CountDownLatch(1);
        private boolean first = true;

        private Slow(WireTransport wires) {
            this.wires = wires;
        }

        @Override
        public String name() {
            return "slow";
        }

        @Override
        public Wire meet(String host, int port, int rank, Duration timeout) throws PipeException {
            Wire wire = wires.meet(host, port, rank, timeout);
            boolean slow = first;
            first = false;
            return new Wire() {
                @Override
                public void send(TensorBytes bytes, Duration limit) throws PipeException {
                    wire.send(bytes, limit);
                }

                @Override
                public void receive(TensorBytes into, Duration limit) throws PipeException {
                    try {
                        wire.receive(into, limit);
                    } catch (PipeException e) {
                        if (slow) {
                            late.add(Thread.currentThread());
                            awaitRelease();
                        }
                        throw e;
                    }
                }

                @Override
                public void close() {
                    wire.close();
                }
            };
        }

        private void awaitRelease() {
            try {
                assertThat(released.await(SOON.toSeconds(), TimeUnit.SECONDS)).isTrue();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }

        @Override
        public Offer offer(String host) throws PipeException {
            return wires.offer(host);
        }

        @Override
        public Wire join(byte[] id, String host, Duration timeout) throws PipeException {
            return wires.join(id, host, timeout);
        }

        @Override
        public void close() {}
    }
}
