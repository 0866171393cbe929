package baton.connectors.lmcache.pd;

import baton.kv.BlockHash;
import baton.kv.InvalidFieldException;
import baton.kv.Ticker;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.store.StoreTask;
import baton.store.remote.Breaker;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.BiPredicate;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** A sender's connection to one receiver: messages are sent in order, by the thread that runs this. */
final class PdLink implements Runnable {
    private static final Logger log = LoggerFactory.getLogger(PdLink.class);
    private static final int MOST_JOBS = 4096;
    /** After it a connection that is not used is closed. */
    private static final Duration IDLE = Duration.ofMinutes(5);
    /** After a failure, in which the jobs that wait fail at once. */
    private static final Duration AWAY = Duration.ofSeconds(1);
    /** Blocks in one offer: while it is answered the next ones wait. */
    private static final int MOST_OFFERED = 512;

    private final PeerAddress receiver;
    private final PdSettings settings;
    private final PdPool pool;
    private final PeerChannel channel;
    private final Breaker presence;
    private final BiPredicate<PdLink, Boolean> ends;
    private final String identity = "lmcache-pd-" + UUID.randomUUID();
    private final BlockingQueue<Job> jobs = new ArrayBlockingQueue<>(MOST_JOBS);
    private volatile boolean closed;

    private Optional<PeerChannel.Call> call = Optional.empty();

    @FunctionalInterface
    private interface Work {
        void run() throws MessageException;
    }

    /** @param end runs behind the work, be it done or not */
    private record Job(Work work, Runnable end) {}

    /** @param ends whether a link that has nothing to do ends; the second argument is true if it does in any case */
    PdLink(
            PeerAddress receiver,
            PdSettings settings,
            PdPool pool,
            PeerChannel channel,
            Ticker ticker,
            BiPredicate<PdLink, Boolean> ends) {
        this.receiver = receiver;
        this.settings = settings;
        this.pool = pool;
        this.channel = channel;
        this.presence = new Breaker(ticker, AWAY);
        this.ends = ends;
    }

    PeerAddress receiver() {
        return receiver;
    }

    boolean isFailed() {
        return !presence.isClosed();
    }

    boolean isIdle() {
        return jobs.isEmpty();
    }

    /** Announcements that find no room are not made: then the blocks come, or not, unannounced. */
    void tell(PdMessage message) {
        boolean _ = jobs.offer(new Job(() -> connected().tell(List.of(message.encode()), PdSettings.TELL), () -> {}));
    }

    /** @return false if too much waits */
    boolean offer(List<BlockHash> blocks, long[] offsets, StoreTask task) {
        return jobs.offer(new Job(() -> put(blocks, offsets, task), task::end));
    }

    void close() {
        closed = true;
        // Has the thread look at it.
        boolean _ = jobs.offer(new Job(() -> {}, () -> {}));
    }

    @Override
    public void run() {
        try {
            while (!closed) {
                Job job = jobs.poll(IDLE.toNanos(), TimeUnit.NANOSECONDS);
                if (job != null) {
                    work(job);
                } else if (ends.test(this, false)) {
                    return;
                }
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } finally {
            call.ifPresent(PeerChannel.Call::close);
            for (Job job = jobs.poll(); job != null; job = jobs.poll()) {
                job.end.run();
            }
            boolean _ = ends.test(this, true);
        }
    }

    private void work(Job job) {
        boolean wasThere = presence.isClosed();
        try {
            job.work.run();
        } catch (MessageException | InvalidFieldException e) {
            if (wasThere) {
                presence.refused();
                if (!closed) {
                    log.warn("the decode instance at {} gets no blocks: {}", receiver, e.getMessage());
                }
            }
            call.ifPresent(PeerChannel.Call::close);
            call = Optional.empty();
        } finally {
            job.end.run();
        }
    }

    private PeerChannel.Call connected() throws MessageException {
        if (call.isPresent() && call.get().isOpen()) {
            return call.get();
        }
        call = Optional.empty();
        if (!presence.admits()) {
            throw new MessageException(receiver + " was away a moment ago");
        }
        try {
            PeerChannel.Call made = introduced();
            presence.succeeded();
            return made;
        } catch (MessageException | InvalidFieldException e) {
            // The pause begins with the failure: an attempt may take longer than it.
            presence.refused();
            throw e;
        }
    }

    private PeerChannel.Call introduced() throws MessageException {
        PeerChannel.Call made = channel.call(receiver.host(), receiver.port(), identity, PdSettings.CONNECT, () -> {});
        call = Optional.of(made);
        PdMessage.Hello hello =
                new PdMessage.Hello(pool.format().describe(), pool.agent().metadata());
        ask(made, hello, PdSettings.CONNECT.multipliedBy(2));
        return made;
    }

    private static PdMessage.Answer ask(PeerChannel.Call call, PdMessage message, Duration timeout)
            throws MessageException {
        List<byte[]> frames = call.ask(List.of(message.encode()), timeout);
        if (!(PdMessage.decode(frames.getFirst()) instanceof PdMessage.Answer answer)) {
            throw new MessageException("it sends a malformed answer");
        }
        if (!answer.refused().isEmpty()) {
            throw new MessageException("it refuses this instance: " + PeerAddress.shown(answer.refused()));
        }
        return answer;
    }

    private void put(List<BlockHash> blocks, long[] offsets, StoreTask task) throws MessageException {
        PeerChannel.Call to = connected();
        // An offer that is late already would time out, and end a connection that works.
        for (int at = 0; at < blocks.size() && !task.deadline().isOver(); at += MOST_OFFERED) {
            int end = Math.min(at + MOST_OFFERED, blocks.size());
            long[] addresses = new long[end - at];
            int[] checksums = new int[end - at];
            for (int i = at; i < end; i++) {
                addresses[i - at] = pool.memory().memory().address() + offsets[i];
                checksums[i - at] = pool.checksum(blocks.get(i), offsets[i]);
            }
            Duration timeout = task.deadline().remaining(settings.answerTimeout());
            PdMessage.Answer answer =
                    ask(to, new PdMessage.Ready(blocks.subList(at, end), addresses, checksums), timeout);
            for (int i = at; i < end; i++) {
                if (answer.there().get(i - at)) {
                    task.succeed(i);
                }
            }
        }
    }
}
