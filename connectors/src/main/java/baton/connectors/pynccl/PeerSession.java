package baton.connectors.pynccl;

import baton.messages.PeerSecret;
import baton.pipe.LookupBuffer;
import baton.pipe.LookupBuffers;
import baton.pipe.PipeException;
import baton.pipe.Wire;
import baton.pipe.WirePipe;
import baton.pipe.WireTransport;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.slf4j.event.Level;

/**
 * A rank's connection with its counterpart: two wires, each told first what this side is, then a pipe each, and the lookup buffer over
 * them. A thread of its own makes it, again and again when it is lost. The counterpart may come first or later, and come back.
 */
final class PeerSession implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(PeerSession.class);

    /** After which both sides begin anew, so that they are at the same step sooner or later. */
    private static final Duration MEETING = Duration.ofSeconds(30);

    /** Who has met on one wire comes to the other at once. */
    private static final Duration SECOND_MEETING = Duration.ofSeconds(5);

    private static final Duration BETWEEN_TRIES = Duration.ofMillis(100);

    /** A peer that does not fit may be replaced by one that does. */
    private static final Duration AFTER_MISFIT = Duration.ofSeconds(2);

    private static final Duration CLOSING = Duration.ofSeconds(5);

    private static final int HELLO_BYTES = 512;

    private final PyNcclSettings settings;
    private final WireTransport transport;
    private final int port;
    private final String fit;
    private final Level atMost;
    private final Thread thread;
    private Optional<LookupBuffer> buffer = Optional.empty();
    /** Until when those who need the peer wait for it, in the system's nanoseconds. */
    private long waitUntil;

    /** Counts connections: the end of an earlier one's wire, which may come late, is not the end of this one. */
    private int connection;

    private boolean lost;
    private boolean closed;
    /** Bytes that a prompt may have which comes: more than this side's pool could not be asked for. */
    private long mostBytes;

    // Of the thread
    private String lastFailure = "";
    private boolean misfit;

    /**
     * @param fit what the counterpart has to be like, as {@code name=value} words
     * @param atMost level at which comings and goings are logged
     */
    PeerSession(PyNcclSettings settings, WireTransport transport, int port, String fit, Level atMost) {
        this.atMost = atMost;
        this.settings = settings;
        this.transport = transport;
        this.port = port;
        this.fit = fit;
        this.waitUntil = System.nanoTime() + settings.connectWait().toNanos();
        // A platform thread, because a transport may wait in native code.
        this.thread = Thread.ofPlatform().daemon().name("kv-link-" + port).unstarted(this::run);
    }

    /** @param poolBytes of the rank's pool */
    void start(long poolBytes) {
        mostBytes = Math.max(settings.bufferBytes(), poolBytes);
        thread.start();
    }

    /** The lookup buffer, once there is one; empty if there is none in time, or the peer has been away for long. */
    synchronized Optional<LookupBuffer> await(Duration timeout) {
        long deadline = System.nanoTime() + timeout.toNanos();
        try {
            while (buffer.isEmpty() && !closed) {
                long left = Math.min(deadline, waitUntil) - System.nanoTime();
                if (left <= 0) {
                    break;
                }
                TimeUnit.NANOSECONDS.timedWait(this, Math.max(left, 1_000_000));
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        return buffer;
    }

    /** True if this is still the buffer: what failed on it failed for another reason than the peer's end. */
    synchronized boolean isUp(LookupBuffer used) {
        return !lost && buffer.filter(used::equals).isPresent();
    }

    private void run() {
        while (!isClosed()) {
            Duration pause = BETWEEN_TRIES;
            misfit = false;
            try {
                connect();
                awaitLoss();
            } catch (PipeException e) {
                say(e);
                pause = misfit ? AFTER_MISFIT : pause;
            } catch (InterruptedException e) {
                return;
            }
            drop();
            pause(pause);
        }
    }

    /** Once for each cause in a row. */
    private void say(PipeException e) {
        String failure = String.valueOf(e.getMessage());
        if (!failure.equals(lastFailure) && !isClosed()) {
            log.atLevel(atMost)
                    .log("Not connected with the {} at {}:{}: {}", counterpart(), settings.host(), port, failure);
        }
        lastFailure = failure;
    }

    private String counterpart() {
        return settings.producer() ? "consumer" : "producer";
    }

    private void connect() throws PipeException {
        synchronized (this) {
            connection++;
            lost = false;
        }
        Wire requests = meet(port, MEETING);
        Wire answers;
        try {
            answers = meet(port + 1, SECOND_MEETING);
        } catch (PipeException e) {
            requests.close();
            throw e;
        }
        long pipeBytes = Math.clamp(settings.bufferBytes() / 4, 1, 256L << 20);
        WirePipe.Settings pipes = WirePipe.Settings.DEFAULT
                .withBufferBytes(pipeBytes)
                .withTensorBytes(mostBytes)
                .withSilence(settings.silence());
        LookupBuffer made = settings.producer()
                ? LookupBuffers.producer(
                        WirePipe.receiver(requests, pipes),
                        WirePipe.sender(answers, pipes),
                        new LookupBuffer.Settings(settings.bufferBytes(), settings.keep()))
                : LookupBuffers.consumer(WirePipe.sender(requests, pipes), WirePipe.receiver(answers, pipes));
        synchronized (this) {
            if (!closed) {
                buffer = Optional.of(made);
                lastFailure = "";
                notifyAll();
                log.atLevel(atMost == Level.WARN ? Level.INFO : atMost)
                        .log(
                                "Connected with the {} over {} at {}:{}",
                                counterpart(),
                                transport.name(),
                                settings.host(),
                                port);
                return;
            }
        }
        made.close();
    }

    private Wire meet(int at, Duration timeout) throws PipeException {
        Wire wire = transport.meet(settings.host(), at, settings.rank(), timeout);
        try (Arena arena = Arena.ofConfined()) {
            authenticate(wire, arena);
            wire.send(hello(arena), SECOND_MEETING);
            MemorySegment theirs = arena.allocate(HELLO_BYTES);
            wire.receive(theirs, SECOND_MEETING);
            check(theirs);
            return new Watched(wire, connection);
        } catch (PipeException | RuntimeException e) {
            wire.close();
            throw e;
        }
    }

    /** Where there is a secret, both show that they know it before they say anything. */
    private void authenticate(Wire wire, Arena arena) throws PipeException {
        Optional<PeerSecret> known = settings.access().secret();
        if (known.isEmpty()) {
            return;
        }
        PeerSecret secret = known.get();
        byte[] own = PeerSecret.nonce();
        byte[] other = exchange(wire, arena, own);
        boolean first = settings.rank() == 0;
        byte[][] nonces = first ? new byte[][] {own, other} : new byte[][] {other, own};
        byte[] shown = exchange(wire, arena, secret.mac(purpose(settings.rank()), nonces));
        if (!secret.isMac(shown, purpose(1 - settings.rank()), nonces)) {
            settings.access()
                    .refuse(
                            "the " + counterpart() + " at " + settings.host() + ":" + port,
                            "it shows another secret, or none");
            throw new PipeException("the peer does not show that it knows the secret of kv_auth_secret_file");
        }
    }

    private static String purpose(int rank) {
        return "wire, rank " + rank;
    }

    private static byte[] exchange(Wire wire, Arena arena, byte[] own) throws PipeException {
        wire.send(arena.allocate(own.length).copyFrom(MemorySegment.ofArray(own)), SECOND_MEETING);
        MemorySegment theirs = arena.allocate(own.length);
        wire.receive(theirs, SECOND_MEETING);
        return theirs.toArray(ValueLayout.JAVA_BYTE);
    }

    private String greeting(boolean producer) {
        return "baton-pynccl-1 kv_role=%s %s".formatted(producer ? "kv_producer" : "kv_consumer", fit);
    }

    private MemorySegment hello(Arena arena) {
        byte[] text = greeting(settings.producer()).getBytes(StandardCharsets.UTF_8);
        return arena.allocate(HELLO_BYTES).copyFrom(MemorySegment.ofArray(Arrays.copyOf(text, HELLO_BYTES)));
    }

    private void check(MemorySegment theirs) throws PipeException {
        byte[] bytes = theirs.toArray(ValueLayout.JAVA_BYTE);
        String text = new String(bytes, StandardCharsets.UTF_8).replaceAll("[^ -~]", "");
        String wanted = greeting(!settings.producer());
        misfit = !text.equals(wanted);
        if (misfit) {
            throw new PipeException("the peer does not fit: it is '%s', must be '%s'".formatted(text, wanted));
        }
    }

    /** A wire that says when it was closed, here or by its pipe because the peer has gone. */
    private final class Watched implements Wire {
        private final Wire wire;
        private final int of;

        private Watched(Wire wire, int of) {
            this.wire = wire;
            this.of = of;
        }

        @Override
        public void send(MemorySegment bytes, Duration timeout) throws PipeException {
            wire.send(bytes, timeout);
        }

        @Override
        public void receive(MemorySegment into, Duration timeout) throws PipeException {
            wire.receive(into, timeout);
        }

        @Override
        public void close() {
            wire.close();
            lost(of);
        }
    }

    private synchronized void lost(int which) {
        lost |= which == connection;
        notifyAll();
    }

    private synchronized void awaitLoss() throws InterruptedException {
        while (!lost && !closed) {
            // Woken by the wires' end, however long that takes.
            TimeUnit.MINUTES.timedWait(this, 1);
        }
        if (!closed) {
            log.atLevel(atMost)
                    .log(
                            "The {} at {}:{} is gone; prompts are computed here until it is back",
                            counterpart(),
                            settings.host(),
                            port);
        }
    }

    private void drop() {
        Optional<LookupBuffer> gone;
        synchronized (this) {
            gone = buffer;
            buffer = Optional.empty();
            if (gone.isPresent()) {
                waitUntil = System.nanoTime() + settings.connectWait().toNanos();
            }
        }
        gone.ifPresent(LookupBuffer::close);
    }

    private synchronized void pause(Duration length) {
        long end = System.nanoTime() + length.toNanos();
        try {
            while (!closed && System.nanoTime() < end) {
                TimeUnit.NANOSECONDS.timedWait(this, Math.max(1_000_000, end - System.nanoTime()));
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private synchronized boolean isClosed() {
        return closed;
    }

    /** Ends the connection; whoever uses it fails. */
    @Override
    public void close() {
        synchronized (this) {
            closed = true;
            notifyAll();
        }
        drop();
        thread.interrupt();
        transport.close();
        try {
            if (thread.isAlive() && !thread.join(CLOSING)) {
                log.error("The thread that connects at {}:{} has not ended within {}", settings.host(), port, CLOSING);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
