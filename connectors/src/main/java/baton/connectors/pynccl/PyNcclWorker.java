package baton.connectors.pynccl;

import baton.kv.KvCache;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HiddenState;
import baton.kv.connector.Measurement;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import baton.pipe.LookupBuffer;
import baton.pipe.PipeException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * Sending. A step's prompts are handed to one thread, which copies one after the other out of the pool and puts it into the lookup buffer. While that
 * is full the thread waits, and the blocks of the prompts behind stay in use: so a slow consumer stops the producer, which takes
 * no more than its pool holds. A prompt that finds no room in time is given up, and the consumer is told, if there is room for that.
 *
 * Receiving. Each prompt has a virtual thread that waits for its entry and copies it into the blocks, which are the request's alone until
 * its load is reported.
 *
 * What both found out goes through `reports` to the rank's thread, which tells the engine.
 */

/** The side of one rank that moves keys, values and hidden states. */
final class PyNcclWorker implements WorkerConnector {
    private static final Logger log = LoggerFactory.getLogger(PyNcclWorker.class);

    private static final Duration CLOSING = Duration.ofSeconds(10);
    /** For the word that an entry will never come. */
    private static final Duration NEVER = Duration.ofMillis(100);

    private final PyNcclSettings settings;
    private final PeerSession link;
    private final boolean hasHidden;
    private final Runnable wake;
    private final ExecutorService receivers = Executors.newThreadPerTaskExecutor(
            Thread.ofVirtual().name("kv-receive-", 0).factory());
    private final ExecutorService sender = Executors.newSingleThreadExecutor(
            Thread.ofPlatform().daemon().name("kv-send").factory());
    private final ConcurrentLinkedQueue<Loaded> loaded = new ConcurrentLinkedQueue<>();
    private final ConcurrentLinkedQueue<Measurement> measurements = new ConcurrentLinkedQueue<>();

    // Of the rank's thread
    private @Nullable KvTensors tensors;
    private final Map<String, Sending> sendings = new HashMap<>();
    /** Those that this step computes the last token of. */
    private final List<Sending> ofStep = new ArrayList<>();

    private final Set<String> ended = new HashSet<>();

    /** @param invalid blocks that did not get what they should */
    private record Loaded(String requestId, Set<Integer> invalid, Optional<HiddenState> hidden) {}

    /** @param wake has the engine look at what there is to report */
    PyNcclWorker(PyNcclSettings settings, PeerSession link, boolean hasHidden, Runnable wake) {
        this.settings = settings;
        this.link = link;
        this.hasHidden = hasHidden;
        this.wake = wake;
    }

    @Override
    public void register(KvCache cache) {
        tensors = new KvTensors(cache, hasHidden);
        link.start(cache.memory().byteSize());
    }

    private KvTensors tensors() {
        return Objects.requireNonNull(tensors, "no pool is registered");
    }

    @Override
    public void startLoad(ConnectorMetadata metadata) {
        PyNcclConnectorMetadata step = (PyNcclConnectorMetadata) metadata;
        for (String id : step.preempted()) {
            Optional.ofNullable(sendings.get(id)).ifPresent(Sending::withdraw);
        }
        ofStep.clear();
        for (PyNcclConnectorMetadata.Send send : step.sends()) {
            Sending known = sendings.get(send.requestId());
            if (known == null || known.isWithdrawn()) {
                Sending sending = new Sending(send);
                sendings.put(send.requestId(), sending);
                ofStep.add(sending);
            }
        }
        for (PyNcclConnectorMetadata.Load load : step.loads()) {
            receivers.execute(() -> receive(load));
        }
        for (int[] key : step.discards()) {
            receivers.execute(() -> discard(key));
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
    public void waitForSave() {
        ofStep.forEach(sending -> sending.done = sender.submit(sending));
        ofStep.clear();
    }

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
        return new WorkerReport(sent, received, invalid, hidden, measured, false);
    }

    // ---- the producer

    /** A prompt on its way out of the pool and into the lookup buffer. */
    private final class Sending implements Runnable {
        private final PyNcclConnectorMetadata.Send send;
        private Optional<HiddenState> hidden = Optional.empty();
        /** Present once the step that completes the prompt was computed. */
        private @Nullable Future<?> done;

        private boolean reading;
        private boolean read;
        private boolean withdrawn;

        private Sending(PyNcclConnectorMetadata.Send send) {
            this.send = send;
        }

        /** True if its blocks are no longer needed: they are read, or never will be. */
        private synchronized boolean isRead() {
            return read || withdrawn || done == null;
        }

        private synchronized boolean isWithdrawn() {
            return withdrawn;
        }

        /** The blocks are about to be overwritten. Returns when nobody reads them. */
        private synchronized void withdraw() {
            withdrawn = !read && !reading;
            boolean interrupted = false;
            while (reading && !read) {
                try {
                    // The reader copies memory and waits for nothing.
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

        @Override
        public void run() {
            if (!beginReading()) {
                return;
            }
            Optional<KvTensors.Gathered> gathered = Optional.empty();
            try {
                gathered = Optional.of(tensors().gather(send, hidden));
            } catch (RuntimeException | OutOfMemoryError e) {
                failed("gather", "reading its blocks failed: " + e);
            } finally {
                endReading();
            }
            if (gathered.isPresent()) {
                try (KvTensors.Gathered entry = gathered.get()) {
                    insert(entry.entry());
                } catch (RuntimeException e) {
                    log.error("Sending request {}", send.requestId(), e);
                    failed("error", e.toString());
                }
            }
        }

        private void insert(LookupBuffer.Entry entry) {
            Optional<LookupBuffer> buffer = link.await(settings.insertTimeout());
            if (buffer.isEmpty()) {
                failed("disconnected", "no consumer is connected");
                return;
            }
            long start = System.nanoTime();
            try {
                buffer.get().insert(entry, settings.insertTimeout());
                measurements.add(Measurement.count("baton:kv_lookup_inserts", 1));
                measurements.add(Measurement.count("baton:kv_lookup_insert_bytes", bytes(entry)));
                measurements.add(Measurement.seconds("baton:kv_lookup_insert", (System.nanoTime() - start) / 1e9));
            } catch (PipeException e) {
                if (link.isUp(buffer.get())) {
                    failed("full", String.valueOf(e.getMessage()));
                    never(buffer.get(), entry);
                } else {
                    failed("disconnected", String.valueOf(e.getMessage()));
                }
            }
        }

        /** So that the consumer need not wait for it. */
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

    private static long bytes(LookupBuffer.Entry entry) {
        return entry.key().data().byteSize()
                + entry.value().data().byteSize()
                + entry.hidden().data().byteSize();
    }

    // ---- the consumer

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
        long start = System.nanoTime();
        Optional<LookupBuffer> buffer = link.await(settings.lookupTimeout());
        if (buffer.isEmpty()) {
            missed(load.requestId(), "disconnected", "all of it, for no producer is connected");
            return Optional.empty();
        }
        Duration left = settings.lookupTimeout().minusNanos(System.nanoTime() - start);
        try {
            Optional<KvTensors.Received> received = tensors().receive(buffer.get(), load, left);
            if (received.isEmpty()) {
                missed(load.requestId(), "never", "all of it, for the producer says that it will not come");
                return Optional.empty();
            }
            measurements.add(
                    Measurement.count("baton:kv_lookup_bytes", received.get().bytes()));
            List<String> missing = received.get().missing();
            if (missing.isEmpty()) {
                measurements.add(Measurement.count("baton:kv_lookups", 1));
                measurements.add(Measurement.seconds("baton:kv_lookup", (System.nanoTime() - start) / 1e9));
            } else {
                missed(load.requestId(), "incomplete", String.join("; ", missing));
            }
            return received;
        } catch (PipeException e) {
            missed(
                    load.requestId(),
                    link.isUp(buffer.get()) ? "timeout" : "disconnected",
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

    /** Makes room at the producer. */
    private void discard(int[] key) {
        Optional<LookupBuffer> buffer = link.await(Duration.ZERO);
        if (buffer.isPresent()) {
            boolean[] roi = new boolean[key.length];
            Arrays.fill(roi, true);
            try {
                buffer.get().dropSelect(key, roi, settings.lookupTimeout()).ifPresent(LookupBuffer.Taken::close);
            } catch (PipeException e) {
                log.debug("Nothing to throw away", e);
            }
        }
    }

    /** Returns when nobody uses the pool any more. */
    @Override
    public void close() {
        link.close();
        sender.shutdownNow();
        receivers.shutdownNow();
        try {
            if (!sender.awaitTermination(CLOSING.toSeconds(), TimeUnit.SECONDS)
                    || !receivers.awaitTermination(CLOSING.toSeconds(), TimeUnit.SECONDS)) {
                log.error("Threads that move keys and values have not ended within {}", CLOSING);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
