package baton.connectors.lmcache.pd;

import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.InvalidFieldException;
import baton.kv.Ticker;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.PeerGreeting;
import baton.messages.PeerSecret;
import baton.store.StoreTask;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** A sender's connection to one receiver: messages are sent in order, by the thread that runs this. */
final class PdLink implements Runnable {
    private static final Logger log = LoggerFactory.getLogger(PdLink.class);
    private static final int MOST_JOBS = 4096;
    /** After it a connection that is not used is closed. */
    private static final Duration IDLE = Duration.ofMinutes(5);
    /** After a failure, for what waits then to fail at once. */
    private static final Duration AWAY = Duration.ofSeconds(1);
    /** Blocks in one offer: while it is answered the next ones wait. */
    private static final int MOST_OFFERED = 512;

    private final PeerAddress receiver;
    private final PdSettings settings;
    private final PdPool pool;
    private final PeerChannel channel;
    private final Ticker ticker;
    private final Ending ending;
    private final String identity = "lmcache-pd-" + UUID.randomUUID();
    private final BlockingQueue<Job> jobs = new ArrayBlockingQueue<>(MOST_JOBS);
    private volatile boolean failed;
    private volatile boolean closed;

    private Optional<PeerChannel.Call> call = Optional.empty();
    private Optional<Deadline> away = Optional.empty();

    /** Decides whether a link that has nothing to do ends. */
    @FunctionalInterface
    interface Ending {
        /** @param always if it ends in any case */
        boolean ends(PdLink link, boolean always);
    }

    private sealed interface Job {}

    private record Tell(PdMessage message) implements Job {}

    private record Offer(List<BlockHash> blocks, long[] offsets, StoreTask task) implements Job {}

    /** Has the thread look at {@link #closed}. */
    private record End() implements Job {}

    PdLink(PeerAddress receiver, PdSettings settings, PdPool pool, PeerChannel channel, Ticker ticker, Ending ending) {
        this.receiver = receiver;
        this.settings = settings;
        this.pool = pool;
        this.channel = channel;
        this.ticker = ticker;
        this.ending = ending;
    }

    PeerAddress receiver() {
        return receiver;
    }

    boolean isFailed() {
        return failed;
    }

    boolean isIdle() {
        return jobs.isEmpty();
    }

    /** Announcements that find no room are not made: then the blocks come, or not, unannounced. */
    void tell(PdMessage message) {
        boolean _ = jobs.offer(new Tell(message));
    }

    /** @return false if too much waits */
    boolean offer(List<BlockHash> blocks, long[] offsets, StoreTask task) {
        return jobs.offer(new Offer(blocks, offsets, task));
    }

    void close() {
        closed = true;
        boolean _ = jobs.offer(new End());
    }

    @Override
    public void run() {
        try {
            while (!closed) {
                Job job = jobs.poll(IDLE.toNanos(), TimeUnit.NANOSECONDS);
                if (job != null) {
                    work(job);
                } else if (ending.ends(this, false)) {
                    return;
                }
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } finally {
            call.ifPresent(PeerChannel.Call::close);
            for (Job job = jobs.poll(); job != null; job = jobs.poll()) {
                if (job instanceof Offer offer) {
                    offer.task.end();
                }
            }
            boolean _ = ending.ends(this, true);
        }
    }

    private void work(Job job) {
        try {
            switch (job) {
                case Tell(PdMessage message) -> connected().tell(List.of(message.encode()), PdSettings.TELL);
                case Offer offer -> offer(offer);
                case End() -> {}
            }
        } catch (MessageException | InvalidFieldException e) {
            if (!failed && !closed) {
                log.warn("the decode instance at {} gets no blocks: {}", receiver, e.getMessage());
            }
            failed = true;
            call.ifPresent(PeerChannel.Call::close);
            call = Optional.empty();
            if (away.isEmpty()) {
                away = Optional.of(Deadline.after(ticker, AWAY));
            }
        } finally {
            if (job instanceof Offer offer) {
                offer.task.end();
            }
        }
    }

    private PeerChannel.Call connected() throws MessageException {
        if (call.isPresent() && call.get().isOpen()) {
            return call.get();
        }
        call = Optional.empty();
        if (away.isPresent() && !away.get().isOver()) {
            throw new MessageException(receiver + " was away a moment ago");
        }
        away = Optional.empty();
        PeerChannel.Call made = channel.call(receiver.host(), receiver.port(), identity, PdSettings.CONNECT, () -> {});
        call = Optional.of(made);
        Optional<PeerSecret> secret = settings.access().secret();
        if (secret.isPresent()) {
            PeerGreeting.greet(made, secret.get(), identity, receiver.toString(), PdSettings.CONNECT);
        }
        PdMessage.Hello hello =
                new PdMessage.Hello(pool.format().describe(), pool.agent().metadata());
        ask(made, hello, PdSettings.CONNECT.multipliedBy(2));
        failed = false;
        return made;
    }

    private static PdMessage.Answer ask(PeerChannel.Call call, PdMessage message, Duration timeout)
            throws MessageException {
        List<byte[]> frames = call.ask(List.of(message.encode()), timeout);
        if (!(PdMessage.decode(frames.getFirst()) instanceof PdMessage.Answer answer)) {
            throw new MessageException("it answers what is no answer");
        }
        if (!answer.refused().isEmpty()) {
            throw new MessageException("it refuses this instance: " + PeerAddress.shown(answer.refused()));
        }
        return answer;
    }

    private void offer(Offer offer) throws MessageException {
        PeerChannel.Call to = connected();
        // An offer that is late already would time out, and end a connection that works.
        for (int at = 0; at < offer.blocks.size() && !offer.task.deadline().isOver(); at += MOST_OFFERED) {
            int end = Math.min(at + MOST_OFFERED, offer.blocks.size());
            long[] addresses = new long[end - at];
            int[] checksums = new int[end - at];
            for (int i = at; i < end; i++) {
                addresses[i - at] = pool.memory().memory().address() + offer.offsets[i];
                checksums[i - at] = pool.checksum(offer.blocks.get(i), offer.offsets[i]);
            }
            Duration timeout = offer.task.deadline().remaining(settings.answerTimeout());
            PdMessage.Answer answer =
                    ask(to, new PdMessage.Ready(offer.blocks.subList(at, end), addresses, checksums), timeout);
            for (int i = at; i < end; i++) {
                if (answer.there().get(i - at)) {
                    offer.task.succeed(i);
                }
            }
        }
    }
}
