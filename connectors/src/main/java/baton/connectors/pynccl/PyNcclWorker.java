package baton.connectors.pynccl;

import baton.kv.Deadline;
import baton.kv.KvCache;
import baton.kv.KvFence;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HiddenState;
import baton.kv.connector.Measurement;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import baton.pipe.BuddyPool;
import baton.pipe.DamagedTensorException;
import baton.pipe.LookupBuffer;
import baton.pipe.PipeException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ThreadFactory;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * Sending. A step's prompts are queued for one thread, which copies one after the other out of the pool and inserts it into the
 * lookup buffer. While the buffer is full the thread waits, and the blocks of queued prompts stay in use: so a slow consumer
 * stops the producer, which uses no more memory than its pool. A prompt for which there is no room in time is given up; the
 * consumer is notified if there is room for that.
 *
 * Receiving. Each prompt has a thread that waits for its entry and copies it into the blocks, which only this request uses until
 * its load is reported.
 *
 * The rank's thread collects the results of both in report().
 */

/** The worker of one rank: sends and receives keys, values and hidden states. */
final class PyNcclWorker implements WorkerConnector {
    private static final Logger log = LoggerFactory.getLogger(PyNcclWorker.class);

    private static final Duration CLOSING = Duration.ofSeconds(10);
    /** The limit for the message that an entry will never be inserted. */
    private static final Duration NEVER = Duration.ofMillis(100);

    private final PyNcclSettings settings;
    private final LookupSession session;
    private final ThreadFactory threads;
    private final Ticker ticker;
    private final Runnable wake;
    private final boolean hasHidden;

    /** Threads that send or receive. */
    private final Set<Thread> running = ConcurrentHashMap.newKeySet();

    /** Prompts to be sent, in order; guards itself and the two fields below. */
    private final Deque<Sending> queue = new ArrayDeque<>();

    /** Whether a thread sends the queued prompts. */
    private boolean sending;

    private boolean closed;

    private final ConcurrentLinkedQueue<Loaded> loaded = new ConcurrentLinkedQueue<>();
    private final ConcurrentLinkedQueue<Measurement> measurements = new ConcurrentLinkedQueue<>();

    /** This field and those below are the rank's thread's. */
    private @Nullable KvTensors tensors;

    private final Map<String, Sending> sendings = new HashMap<>();

    /** Prompts that this step completes. */
    private final List<Sending> ofStep = new ArrayList<>();

    private final Set<String> ended = new HashSet<>();

    /**
     * The result of a load.
     *
     * @param invalid blocks without valid content
     */
    private record Loaded(String requestId, Set<Integer> invalid, Optional<HiddenState> hidden) {}

    /**
     * @param threads of sending and receiving
     * @param hasHidden whether the rank has hidden states, that is whether its stage is the last
     */
    PyNcclWorker(
            ConnectorContext context,
            PyNcclSettings settings,
            LookupSession session,
            ThreadFactory threads,
            boolean hasHidden) {
        this.settings = settings;
        this.session = session;
        this.threads = threads;
        this.ticker = context.ticker();
        this.wake = context.wake();
        this.hasHidden = hasHidden;
    }

    @Override
    public void register(KvCache cache) {
        tensors = new KvTensors(cache, session.start(cache.memory()), hasHidden);
    }

    private KvTensors tensors() {
        return Objects.requireNonNull(tensors, "no pool is registered");
    }

    @Override
    public void startLoad(ConnectorMetadata metadata) {
        ofStep.clear();
        if (!(metadata instanceof PyNcclConnectorMetadata step)) {
            return;
        }
        for (String id : step.preempted()) {
            Optional.ofNullable(sendings.get(id)).ifPresent(Sending::withdraw);
        }
        for (PyNcclConnectorMetadata.Send send : step.sends()) {
            Sending known = sendings.get(send.requestId());
            if (known == null || known.isWithdrawn()) {
                Sending sending = new Sending(send);
                sendings.put(send.requestId(), sending);
                ofStep.add(sending);
            }
        }
        for (PyNcclConnectorMetadata.Load load : step.loads()) {
            run("kv-receive", () -> receive(load));
        }
        for (int[] key : step.discards()) {
            run("kv-discard", () -> discard(key));
        }
    }

    private void run(String name, Runnable action) {
        Thread thread = threads.newThread(() -> {
            try {
                action.run();
            } finally {
                running.remove(Thread.currentThread());
            }
        });
        thread.setName(name);
        running.add(thread);
        try {
            thread.start();
        } catch (OutOfMemoryError e) {
            running.remove(thread);
            throw e;
        }
    }

    @Override
    public boolean wantsHidden() {
        return settings.producer();
    }

    @Override
    public void saveHidden(String requestId, HiddenState state) {
        for (Sending sending : ofStep) {
            if (sending.send.requestId().equals(requestId)) {
                sending.hidden = Optional.of(state.copy());
            }
        }
    }

    @Override
    public void discardSaves(Set<String> requestIds) {
        ofStep.removeIf(sending -> requestIds.contains(sending.send.requestId()));
    }

    @Override
    public void waitForSave() {
        ofStep.forEach(this::enqueue);
        ofStep.clear();
    }

    private void enqueue(Sending prompt) {
        prompt.submit();
        synchronized (queue) {
            queue.add(prompt);
            if (!sending && !closed) {
                sending = true;
                run("kv-send", this::sendQueued);
            }
        }
    }

    private void sendQueued() {
        for (Optional<Sending> next = next(); next.isPresent(); next = next()) {
            try {
                next.get().run();
            } catch (RuntimeException | Error e) {
                // This thread continues: no other one sends the queued prompts.
                log.error("Sending request {}", next.get().send.requestId(), e);
            }
        }
    }

    private Optional<Sending> next() {
        synchronized (queue) {
            Optional<Sending> next = closed ? Optional.empty() : Optional.ofNullable(queue.poll());
            sending = next.isPresent();
            return next;
        }
    }

    @Override
    public boolean savesByLayer() {
        return false;
    }

    /** Prompts are read when their step is computed, see {@link #waitForSave}. */
    @Override
    public void saveLayer(int layer, KvFence computed) {}

    @Override
    public WorkerReport report(Set<String> finished) {
        ended.addAll(finished);
        Set<String> sent = new HashSet<>();
        for (Iterator<String> ids = ended.iterator(); ids.hasNext(); ) {
            String id = ids.next();
            Sending sending = sendings.get(id);
            if (sending == null) {
                ids.remove();
            } else if (sending.isRead()) {
                ids.remove();
                sendings.remove(id);
                sent.add(id);
            }
        }
        Set<String> received = new HashSet<>();
        Set<Integer> invalid = new HashSet<>();
        Map<String, HiddenState> hidden = new HashMap<>();
        for (Loaded each = loaded.poll(); each != null; each = loaded.poll()) {
            received.add(each.requestId());
            invalid.addAll(each.invalid());
            String id = each.requestId();
            each.hidden().ifPresent(state -> hidden.put(id, state));
        }
        List<Measurement> measured = new ArrayList<>();
        for (Measurement each = measurements.poll(); each != null; each = measurements.poll()) {
            measured.add(each);
        }
        settings.access().takeRefusedMeasurement().ifPresent(measured::add);
        return new WorkerReport(sent, received, invalid, measured).withHidden(hidden);
    }

    /** A prompt to be copied out of the pool and inserted into the lookup buffer. */
    private final class Sending {
        private final PyNcclConnectorMetadata.Send send;
        private Optional<HiddenState> hidden = Optional.empty();
        /** Whether the step that completes the prompt was computed. */
        private boolean submitted;

        private boolean reading;
        private boolean read;
        private boolean withdrawn;

        private Sending(PyNcclConnectorMetadata.Send send) {
            this.send = send;
        }

        private synchronized void submit() {
            submitted = true;
        }

        /** Whether its blocks are no longer needed: they are read, or never will be. */
        private synchronized boolean isRead() {
            return read || withdrawn || !submitted;
        }

        private synchronized boolean isWithdrawn() {
            return withdrawn;
        }

        /** The blocks are about to be overwritten. Returns when no thread reads them. */
        private synchronized void withdraw() {
            withdrawn = !read && !reading;
            boolean interrupted = false;
            while (reading && !read) {
                try {
                    // Without a timeout of its own: the sending thread copies memory; over a GPU it waits for a fence,
                    // which has a deadline.
                    wait();
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }

        private synchronized boolean beginReading() {
            reading = !withdrawn;
            return reading;
        }

        private void endReading() {
            synchronized (this) {
                read = true;
                notifyAll();
            }
            wake.run();
        }

        private void run() {
            if (!beginReading()) {
                return;
            }
            Optional<LookupBuffer.Entry> gathered = Optional.empty();
            try {
                gathered = Optional.of(tensors().gather(send, hidden));
            } catch (RuntimeException | OutOfMemoryError e) {
                failed("gather", "reading its blocks failed: " + e);
            } finally {
                endReading();
            }
            try {
                gathered.ifPresent(this::insert);
            } catch (RuntimeException e) {
                log.error("Sending request {}", send.requestId(), e);
                failed("error", e.toString());
            }
        }

        private void insert(LookupBuffer.Entry entry) {
            Optional<LookupBuffer> buffer = session.await(settings.insertTimeout());
            if (buffer.isEmpty()) {
                entry.close();
                failed("disconnected", "no consumer is connected");
                return;
            }
            long start = ticker.nanos();
            long bytes = entry.tensorBytes();
            try {
                buffer.get().insert(entry, settings.insertTimeout());
                measurements.add(Measurement.count("baton:kv_lookup_inserts", 1));
                measurements.add(Measurement.count("baton:kv_lookup_insert_bytes", bytes));
                measurements.add(Measurement.seconds("baton:kv_lookup_insert", (ticker.nanos() - start) / 1e9));
            } catch (PipeException e) {
                if (session.isUp(buffer.get())) {
                    failed("full", String.valueOf(e.getMessage()));
                    never(buffer.get(), entry);
                } else {
                    failed("disconnected", String.valueOf(e.getMessage()));
                }
            }
        }

        /** Tells the consumer, so that it does not wait for the entry. */
        private void never(LookupBuffer buffer, LookupBuffer.Entry entry) {
            try {
                buffer.insertNever(entry.tokens(), entry.roi(), NEVER);
            } catch (PipeException e) {
                log.debug("The consumer is not told that request {} does not come", send.requestId(), e);
            }
        }

        private void failed(String cause, String why) {
            log.warn(
                    "The keys and values of request {} ({} tokens) are not sent; the consumer computes them: {}",
                    send.requestId(),
                    send.tokens(),
                    why);
            measurements.add(Measurement.count("baton:kv_lookup_insert_failures", 1, "cause", cause));
        }
    }

    private void receive(PyNcclConnectorMetadata.Load load) {
        KvTensors.Received nothing = new KvTensors.Received(0, Optional.empty(), List.of(), 0);
        KvTensors.Received received = nothing;
        try {
            received = take(load).orElse(nothing);
        } catch (RuntimeException | OutOfMemoryError e) {
            log.error("Receiving request {}", load.requestId(), e);
            missed(load.requestId(), "error", e.toString());
        } finally {
            int good = Math.max(load.computed(), received.tokens())
                    / tensors().cache().layout().blockSize();
            boolean whole = received.tokens() >= load.tokens();
            Set<Integer> invalid = new HashSet<>();
            if (!whole) {
                Arrays.stream(load.blocks(), Math.min(good, load.blocks().length), load.blocks().length)
                        .forEach(invalid::add);
            }
            loaded.add(new Loaded(load.requestId(), invalid, received.hidden()));
            wake.run();
        }
    }

    private Optional<KvTensors.Received> take(PyNcclConnectorMetadata.Load load) {
        long start = ticker.nanos();
        Deadline deadline = Deadline.after(ticker, settings.lookupTimeout());
        Optional<LookupBuffer> buffer = session.await(settings.lookupTimeout());
        if (buffer.isEmpty()) {
            missed(load.requestId(), "disconnected", "all of it, for no producer is connected");
            return Optional.empty();
        }
        try {
            Optional<KvTensors.Received> received = tensors().receive(buffer.get(), load, deadline.remaining());
            if (received.isEmpty()) {
                missed(load.requestId(), "never", "all of it, for the producer says that it will not come");
                return Optional.empty();
            }
            measurements.add(
                    Measurement.count("baton:kv_lookup_bytes", received.get().bytes()));
            List<String> missing = received.get().missing();
            if (missing.isEmpty()) {
                measurements.add(Measurement.count("baton:kv_lookups", 1));
                measurements.add(Measurement.seconds("baton:kv_lookup", (ticker.nanos() - start) / 1e9));
            } else {
                missed(load.requestId(), "incomplete", String.join("; ", missing));
            }
            return received;
        } catch (DamagedTensorException e) {
            missed(load.requestId(), "corrupt", "all of it: " + e.getMessage());
            return Optional.empty();
        } catch (PipeException e) {
            missed(
                    load.requestId(),
                    session.isUp(buffer.get()) ? "timeout" : "disconnected",
                    "all of it: " + e.getMessage());
            return Optional.empty();
        }
    }

    private void missed(String requestId, String cause, String missing) {
        log.warn(
                "Failed to receive all KVs and hidden states, redo model forwarding. Request {} lacks {}",
                requestId,
                missing);
        measurements.add(Measurement.count("baton:kv_lookup_failures", 1, "cause", cause));
    }

    /** Takes an entry that is not needed, to make room at the producer. */
    private void discard(int[] key) {
        Optional<LookupBuffer> buffer = session.await(Duration.ZERO);
        if (buffer.isPresent()) {
            boolean[] roi = new boolean[key.length];
            Arrays.fill(roi, true);
            try {
                buffer.get().dropSelect(key, roi, settings.lookupTimeout()).ifPresent(LookupBuffer.Entry::close);
            } catch (PipeException e) {
                log.debug("Nothing to throw away", e);
            }
        }
    }

    /** Returns when no thread uses the pool any more, and its device has no tensors. */
    @Override
    public void close() {
        synchronized (queue) {
            closed = true;
        }
        session.close();
        Deadline deadline = Deadline.after(ticker, CLOSING);
        running.forEach(Thread::interrupt);
        try {
            for (Thread thread : running) {
                if (!thread.join(deadline.remaining())) {
                    log.error("{}, which copies keys and values, has not ended within {}", thread.getName(), CLOSING);
                }
            }
            if (tensors != null && tensors.memory() instanceof BuddyPool beside) {
                beside.close();
                if (!beside.awaitUnused(deadline)) {
                    log.warn("tensors in memory of the device are still in use");
                }
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
