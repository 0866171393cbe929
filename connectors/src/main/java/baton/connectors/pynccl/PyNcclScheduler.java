package baton.connectors.pynccl;

import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Measurement;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerReport;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Decides which prompts to send and to load. A producer sends each prompt once, in the step that computes its last token, and
 * keeps a finished request's blocks until they are read. A consumer loads each prompt once: an entry can be taken once, and
 * further samples share it through the prefix cache. The entry of a request that does not load is discarded.
 */
final class PyNcclScheduler implements SchedulerConnector {
    private static final Logger log = LoggerFactory.getLogger(PyNcclScheduler.class);

    private final boolean producer;
    private final int blockSize;
    private final PromptKey keys;
    private final Map<String, State> requests = new HashMap<>();
    /** Requests with an unfinished load. */
    private final Set<String> loading = new HashSet<>();

    private final List<PyNcclConnectorMetadata.Load> loads = new ArrayList<>();
    private final List<int[]> discards = new ArrayList<>();
    private final List<Measurement> measurements = new ArrayList<>();

    PyNcclScheduler(ConnectorContext context) {
        this.producer = context.config().isProducer();
        this.blockSize = context.layout().blockSize();
        this.keys = new PromptKey(context);
    }

    /** The progress of a request. */
    private static final class State {
        /** The prompt's entry was looked up, or discarded. */
        private boolean asked;
        /** The workers know the request as one to send. */
        private boolean sending;
        /** The prompt's last token was computed, and the request not preempted since. */
        private boolean sent;
    }

    private State state(KvRequest request) {
        return requests.computeIfAbsent(request.id(), _ -> new State());
    }

    @Override
    public void onNewRequest(KvRequest request) {
        State state = state(request);
        if (!producer && !request.mayLoad()) {
            log.info(
                    "Request {} wants log probabilities of its prompt, which need all hidden states: redo model forwarding.",
                    request.id());
            measurements.add(Measurement.count("baton:kv_lookup_failures", 1, "cause", "prompt_logprobs"));
            discard(request, state);
        }
        // A prompt is sent once, however many samples are asked for.
        state.asked |= request.firstSample().isPresent();
    }

    @Override
    public KvMatch match(KvRequest request, int computedTokens) {
        if (request.firstSample().filter(loading::contains).isPresent()) {
            // It will be in the prefix cache.
            return new KvMatch.Pending();
        }
        int tokens = request.promptLength() - computedTokens;
        return producer || state(request).asked || tokens <= 0 ? new KvMatch.None() : new KvMatch.Tokens(tokens, true);
    }

    @Override
    public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
        if (externalTokens > 0) {
            state(request).asked = true;
            loading.add(request.id());
            int[] blocks = Arrays.copyOf(blockTable, Math.ceilDiv(request.promptLength(), blockSize));
            loads.add(new PyNcclConnectorMetadata.Load(
                    request.id(), keys.of(request), blocks, request.promptLength(), computedTokens));
        }
    }

    @Override
    public ConnectorMetadata buildMetadata(ScheduledStep step) {
        for (String id : step.preempted()) {
            Optional.ofNullable(requests.get(id)).ifPresent(state -> state.sent = false);
        }
        List<PyNcclConnectorMetadata.Send> sends = new ArrayList<>();
        if (producer) {
            for (ScheduledRequest scheduled : step.requests()) {
                send(scheduled).ifPresent(sends::add);
            }
        }
        PyNcclConnectorMetadata plan = new PyNcclConnectorMetadata(
                sends, List.copyOf(loads), List.copyOf(discards), Set.copyOf(step.preempted()));
        loads.clear();
        discards.clear();
        return plan;
    }

    private Optional<PyNcclConnectorMetadata.Send> send(ScheduledRequest scheduled) {
        KvRequest request = scheduled.request();
        State state = state(request);
        int tokens = request.promptLength();
        boolean ofFirstSample = request.firstSample().isEmpty();
        if (!ofFirstSample || state.sent || scheduled.computedTokens() + scheduled.scheduledTokens() < tokens) {
            return Optional.empty();
        }
        state.sent = true;
        state.sending = true;
        int[] blocks = Arrays.copyOf(scheduled.blockTable(), Math.ceilDiv(tokens, blockSize));
        return Optional.of(new PyNcclConnectorMetadata.Send(request.id(), keys.of(request), blocks, tokens));
    }

    @Override
    public void onStepDone(WorkerReport report) {
        loading.removeAll(report.received());
    }

    @Override
    public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
        State state = state(request);
        requests.remove(request.id());
        if (!producer) {
            discard(request, state);
        }
        return new Release(state.sending, Optional.empty());
    }

    private void discard(KvRequest request, State state) {
        if (!state.asked) {
            state.asked = true;
            discards.add(keys.of(request));
        }
    }

    @Override
    public boolean hasPendingWork() {
        return !loads.isEmpty() || !discards.isEmpty();
    }

    @Override
    public List<Measurement> takeMeasurements() {
        List<Measurement> taken = List.copyOf(measurements);
        measurements.clear();
        return taken;
    }

    @Override
    public void close() {}
}
