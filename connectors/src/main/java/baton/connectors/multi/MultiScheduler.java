package baton.connectors.multi;

import baton.connectors.multi.MultiMetadata.Load;
import baton.kv.ConfigException;
import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.kv.KvEvent;
import baton.kv.KvGroups;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.ReportMerger;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerMetadata;
import baton.kv.connector.WorkerReport;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/*
 * Which child loads
 *
 *   Children are asked in order, up to the first that does not answer None. Its answer is the answer; if the request is then allocated
 *   with tokens to load, that child gets them and the other children get the same blocks without any.
 *
 * Loads within a step
 *
 *   A child may load within the step that computes the rest of the request. The saves and sends of other children in that step would be
 *   wrong if the load failed at its end, and no connector can take back sent data. So for the engine such a load is one between steps: it
 *   begins and ends with a step that does not compute the request, at the end of which it is known whether it is good. To the child the
 *   request is scheduled in that step, with nothing to compute.
 *
 * When a finished request's blocks are free
 *
 *   All children that delayed their release, each until it has reported the request as sent, on all ranks. When none is left, the
 *   workers are notified in the next step, and report it.
 *
 * A child that throws, on either side
 *
 *   is not called any more, as it may have lost track of its transfers. A transfer that it began may still be running, so none of the
 *   blocks that it may use can be released before its close. The workers close it at the beginning of the next step, ahead of all
 *   other work, and report its loads as over and invalid; a worker that has thrown is closed at once. When that step is over all are
 *   closed: the blocks that were kept for it are released, and its scheduler side is closed. If a worker cannot be closed, that is a
 *   failure of the MultiConnector as a whole, which the engine handles as it does any connector's.
 */

/** Has the children's scheduler sides decide, and puts their answers together. */
final class MultiScheduler implements SchedulerConnector {
    /** The child that has tokens for a request, and whether it loads them between steps. */
    private record Answer(int child, boolean async) {}

    /** A load within a step, which has not begun. */
    private record Due(int child, ScheduledRequest request) {}

    private enum State {
        ON,
        /** The child has thrown; its workers are not notified yet. */
        FAILED,
        /** Its workers close it in this step. */
        CLOSING,
        CLOSED
    }

    private static final class Side {
        private final String label;
        private final SchedulerConnector connector;
        private final ChildFailure failure;
        /** Whether there were events that subscribers believe in. */
        private boolean told;

        private final ReportMerger merger;
        private State state = State.ON;

        private Side(String label, SchedulerConnector connector, int ranks) {
            this.label = label;
            this.connector = connector;
            this.failure = new ChildFailure(label);
            this.merger = new ReportMerger(ranks);
        }

        private <T> T call(String method, T otherwise, Supplier<T> call) {
            if (state != State.ON) {
                return otherwise;
            }
            T result = failure.guard(method, otherwise, call);
            if (failure.any()) {
                state = State.FAILED;
            }
            return result;
        }

        private void call(String method, Runnable call) {
            call(method, true, () -> {
                call.run();
                return true;
            });
        }

        /** Whether transfers of its may be under way although it is not called any more. */
        private boolean mayTransfer() {
            return state == State.FAILED || state == State.CLOSING;
        }
    }

    private final List<Child> children;
    private final List<Side> sides;
    private final int blockSize;
    private final KvGroups groups;
    private final int ranks;

    /** For each request, the child that answered last, if one has tokens. */
    private final Map<String, Answer> answers = new HashMap<>();

    private final List<Load> loads = new ArrayList<>();
    private final Map<String, Due> due = new LinkedHashMap<>();
    /** For each finished request, the children that need its blocks. */
    private final Map<String, BitSet> kept = new HashMap<>();

    private final Set<String> released = new LinkedHashSet<>();
    private final List<Measurement> measurements = new ArrayList<>();

    /** @param schedulers of the children, in their order */
    MultiScheduler(ConnectorContext context, List<Child> children, List<SchedulerConnector> schedulers) {
        this.children = children;
        this.blockSize = context.layout().blockSize();
        this.groups = context.groups();
        this.ranks = context.tensorParallelSize() * context.pipelineParallelSize();
        this.sides = IntStream.range(0, children.size())
                .mapToObj(i -> new Side(children.get(i).label(), schedulers.get(i), ranks))
                .toList();
    }

    @Override
    public void onHandshakeMetadata(Map<Rank, HandshakeMetadata> metadata) {
        for (int i = 0; i < sides.size(); i++) {
            Map<Rank, HandshakeMetadata> own = new LinkedHashMap<>();
            int child = i;
            metadata.forEach((rank, all) -> {
                if (all instanceof MultiReport.Handshake handshake) {
                    handshake.children().get(child).ifPresent(each -> own.put(rank, each));
                }
            });
            if (!own.isEmpty()) {
                children.get(i).within(() -> {
                    sides.get(child).connector.onHandshakeMetadata(own);
                    return true;
                });
            }
        }
    }

    /** @throws ConfigException if two children have different things to say of the same */
    @Override
    public Optional<JsonFields> advertisedKvTransferParams() {
        MergedParams merged = new MergedParams();
        for (Side side : sides) {
            if (side.state != State.ON) {
                continue;
            }
            side.connector.advertisedKvTransferParams().ifPresent(params -> merged.add(side.label, params));
        }
        merged.clash().ifPresent(clash -> {
            throw new ConfigException(
                    "kv_connector_extra_config." + Children.CONNECTORS,
                    clash
                            + ", so a request cannot say which of them it means; only one of them can be a producer here");
        });
        return merged.params();
    }

    @Override
    public void onNewRequest(KvRequest request) {
        List<InvalidFieldException> refusals = new ArrayList<>();
        for (Side side : sides) {
            side.call("onNewRequest", () -> {
                try {
                    side.connector.onNewRequest(request);
                } catch (InvalidFieldException e) {
                    refusals.add(e);
                }
            });
        }
        throwFirst(refusals);
    }

    private static void throwFirst(List<InvalidFieldException> refusals) {
        if (!refusals.isEmpty()) {
            throw refusals.getFirst();
        }
    }

    @Override
    public void onRefused(String requestId, JsonFields kvTransferParams) {
        for (Side side : sides) {
            side.call("onRefused", () -> side.connector.onRefused(requestId, kvTransferParams));
        }
    }

    @Override
    public KvMatch match(KvRequest request, int computedTokens) {
        answers.remove(request.id());
        for (int i = 0; i < sides.size(); i++) {
            Side side = sides.get(i);
            List<InvalidFieldException> refusals = new ArrayList<>();
            KvMatch match = side.call("match", new KvMatch.None(), () -> {
                try {
                    return side.connector.match(request, computedTokens);
                } catch (InvalidFieldException e) {
                    refusals.add(e);
                    return new KvMatch.None();
                }
            });
            throwFirst(refusals);
            switch (match) {
                case KvMatch.None _ -> {}
                case KvMatch.Pending _ -> {
                    return match;
                }
                case KvMatch.Tokens(int count, boolean async, boolean reached) -> {
                    // One token must be computed in a step that loads the other tokens.
                    int usable = async ? count : Math.min(count, request.length() - computedTokens - 1);
                    if (usable > 0) {
                        answers.put(request.id(), new Answer(i, async));
                        return new KvMatch.Tokens(usable, true, reached);
                    }
                }
            }
        }
        return new KvMatch.None();
    }

    @Override
    public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
        Optional<Answer> answer = Optional.ofNullable(answers.remove(request.id()));
        if (externalTokens > 0) {
            Answer loading = answer.orElseThrow(() -> new IllegalStateException(
                    "request %s: externalTokens=%d were never matched".formatted(request.id(), externalTokens)));
            int end = computedTokens + externalTokens;
            loads.add(
                    new Load(loading.child(), request.id(), blocks(blockTable, computedTokens, end), !loading.async()));
            if (!loading.async()) {
                due.put(request.id(), new Due(loading.child(), new ScheduledRequest(request, blockTable, end, 0)));
            }
        }
        for (int i = 0; i < sides.size(); i++) {
            Side side = sides.get(i);
            int child = i;
            int own = answer.filter(loading -> loading.child() == child).isPresent() ? externalTokens : 0;
            side.call("onAllocated", () -> side.connector.onAllocated(request, blockTable, computedTokens, own));
        }
    }

    private Set<Integer> blocks(int[] blockTable, int from, int to) {
        Set<Integer> blocks = new LinkedHashSet<>();
        groups.blocks(blockTable, from / blockSize, Math.ceilDiv(to, blockSize)).stream()
                .flatMapToInt(Arrays::stream)
                .forEach(blocks::add);
        return blocks;
    }

    @Override
    public ConnectorMetadata buildMetadata(ScheduledStep step) {
        List<ConnectorMetadata> own = new ArrayList<>();
        for (int i = 0; i < sides.size(); i++) {
            Side side = sides.get(i);
            ScheduledStep seen = new ScheduledStep(requests(step, i), step.finished(), step.preempted());
            own.add(side.call("buildMetadata", new ConnectorMetadata.None(), () -> side.connector.buildMetadata(seen)));
        }
        BitSet off = new BitSet();
        for (int i = 0; i < sides.size(); i++) {
            Side side = sides.get(i);
            if (side.state == State.FAILED) {
                side.state = State.CLOSING;
            }
            if (side.state != State.ON) {
                off.set(i);
            }
        }
        MultiMetadata metadata = new MultiMetadata(own, off, List.copyOf(loads), Set.copyOf(released));
        loads.clear();
        due.clear();
        released.clear();
        return metadata;
    }

    /** A child's view of the step's requests: all, and those that it loads within the step. */
    private List<ScheduledRequest> requests(ScheduledStep step, int child) {
        List<ScheduledRequest> requests = new ArrayList<>(step.requests());
        for (Due each : due.values()) {
            if (each.child() == child) {
                requests.add(each.request());
            }
        }
        return requests;
    }

    @Override
    public void onStepDone(WorkerReport report, Map<Rank, WorkerMetadata> metadata) {
        SortedRanks reports = SortedRanks.of(metadata);
        for (int i = 0; i < sides.size(); i++) {
            Side side = sides.get(i);
            if (side.state == State.CLOSING) {
                closed(side, i);
            }
            if (reports.failed(i) && side.state == State.ON) {
                side.state = State.FAILED;
            }
            if (side.state == State.ON && reports.size() == ranks) {
                WorkerReport merged = side.merger.merge(reports.of(i));
                for (String request : merged.sent()) {
                    sent(request, i);
                }
                Map<Rank, WorkerMetadata> own = reports.metadata(i);
                side.call("onStepDone", () -> side.connector.onStepDone(merged, own));
            }
        }
    }

    /** The reports of the workers of all ranks, in the order of the ranks. */
    private record SortedRanks(List<Rank> ranks, List<MultiReport> reports) {
        static SortedRanks of(Map<Rank, WorkerMetadata> metadata) {
            List<Rank> ranks = metadata.keySet().stream()
                    .filter(rank -> metadata.get(rank) instanceof MultiReport)
                    .sorted(Comparator.comparingInt(Rank::pipeline).thenComparingInt(Rank::tensor))
                    .toList();
            List<MultiReport> reports = new ArrayList<>();
            for (Rank rank : ranks) {
                if (metadata.get(rank) instanceof MultiReport own) {
                    reports.add(own);
                }
            }
            return new SortedRanks(ranks, reports);
        }

        int size() {
            return ranks.size();
        }

        boolean failed(int child) {
            return reports.stream().anyMatch(report -> report.failed().get(child));
        }

        List<WorkerReport> of(int child) {
            return reports.stream().map(report -> report.children().get(child)).toList();
        }

        Map<Rank, WorkerMetadata> metadata(int child) {
            Map<Rank, WorkerMetadata> own = new LinkedHashMap<>();
            for (int i = 0; i < ranks.size(); i++) {
                Rank rank = ranks.get(i);
                reports.get(i).children().get(child).metadata().ifPresent(each -> own.put(rank, each));
            }
            return own;
        }
    }

    private void sent(String request, int child) {
        BitSet keepers = kept.get(request);
        if (keepers == null || !keepers.get(child)) {
            measurements.add(Measurement.count("baton:kv_unknown_reports", 1));
            return;
        }
        release(request, keepers, child);
    }

    private void release(String request, BitSet keepers, int child) {
        keepers.clear(child);
        if (keepers.isEmpty()) {
            kept.remove(request);
            released.add(request);
        }
    }

    /** All workers of a child that has failed are closed. */
    private void closed(Side side, int child) {
        side.state = State.CLOSED;
        kept.forEach((request, keepers) -> keepers.clear(child));
        kept.entrySet().removeIf(each -> {
            boolean free = each.getValue().isEmpty();
            if (free) {
                released.add(each.getKey());
            }
            return free;
        });
        side.failure.guard("close", side.connector::close);
        measurements.add(Measurement.count("baton:kv_connector_failures", 1));
        measurements.add(Measurement.gauge("baton:kv_connector_switched_off", 1, MultiWorker.LABEL, side.label));
    }

    @Override
    public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
        answers.remove(request.id());
        due.remove(request.id());
        MergedParams merged = new MergedParams();
        BitSet keepers = new BitSet();
        List<BooleanSupplier> holders = new ArrayList<>();
        for (int i = 0; i < sides.size(); i++) {
            Side side = sides.get(i);
            Release own =
                    side.call("onFinished", Release.NOW, () -> side.connector.onFinished(request, end, blockTable));
            if (own.delayed() || (side.mayTransfer() && blockTable.length > 0)) {
                keepers.set(i);
            }
            own.kvTransferParams().ifPresent(params -> merged.add(side.label, params));
            own.error().ifPresent(merged::fail);
            if (!own.answerIsHeld().equals(Release.ANSWER_AT_ONCE)) {
                holders.add(() -> side.call("answerIsHeld", false, own.answerIsHeld()::getAsBoolean));
            }
        }
        if (!keepers.isEmpty()) {
            kept.put(request.id(), keepers);
        }
        Optional<String> error = merged.clash();
        Optional<JsonFields> params = error.isEmpty() ? merged.params() : Optional.empty();
        // A decode instance that loads by parameters needs no store.
        boolean held = !holders.isEmpty() && params.isEmpty();
        return new Release(
                !keepers.isEmpty(),
                params,
                error,
                held ? () -> holders.stream().anyMatch(BooleanSupplier::getAsBoolean) : Release.ANSWER_AT_ONCE);
    }

    @Override
    public void onWrongLoad(KvRequest request) {
        for (Side side : sides) {
            side.call("onWrongLoad", () -> side.connector.onWrongLoad(request));
        }
    }

    @Override
    public void onAnswerLost(String requestId) {
        BitSet keepers = kept.getOrDefault(requestId, new BitSet());
        for (int i = keepers.nextSetBit(0); i >= 0; i = keepers.nextSetBit(i + 1)) {
            Side side = sides.get(i);
            side.call("onAnswerLost", () -> side.connector.onAnswerLost(requestId));
        }
    }

    /** The {@code kv_transfer_params} of several children, as one object. */
    private static final class MergedParams {
        private final ObjectNode all = JsonNodeFactory.instance.objectNode();
        private final Map<String, String> from = new HashMap<>();
        private boolean any;
        private Optional<String> clash = Optional.empty();

        void add(String label, JsonFields params) {
            any = true;
            for (Map.Entry<String, JsonNode> field : params.toJson().properties()) {
                String name = field.getKey();
                JsonNode before = all.get(name);
                if (before != null && !before.equals(field.getValue())) {
                    fail("kv_transfer_params: %s and %s both set '%s', to different values: %s and %s"
                            .formatted(from.get(name), label, name, before, field.getValue()));
                } else {
                    all.set(name, field.getValue());
                    from.putIfAbsent(name, label);
                }
            }
        }

        void fail(String why) {
            clash = clash.or(() -> Optional.of(why));
        }

        Optional<String> clash() {
            return clash;
        }

        Optional<JsonFields> params() {
            return any ? Optional.of(JsonFields.of("kv_transfer_params", all)) : Optional.empty();
        }
    }

    @Override
    public boolean hasPendingWork() {
        return anyOf("hasPendingWork", side -> side.connector::hasPendingWork)
                || sides.stream().anyMatch(Side::mayTransfer)
                || !loads.isEmpty()
                || !released.isEmpty();
    }

    @Override
    public boolean isPrefilledElsewhere(KvRequest request) {
        return anyOf("isPrefilledElsewhere", side -> () -> side.connector.isPrefilledElsewhere(request));
    }

    @Override
    public boolean isStoring() {
        return anyOf("isStoring", side -> side.connector::isStoring);
    }

    private boolean anyOf(String method, Function<Side, BooleanSupplier> call) {
        boolean any = false;
        for (Side side : sides) {
            any |= side.call(method, false, () -> call.apply(side).getAsBoolean());
        }
        return any;
    }

    @Override
    public boolean resetCache() {
        boolean all = sides.stream().noneMatch(Side::mayTransfer);
        for (Side side : sides) {
            boolean done = side.state == State.CLOSED || side.call("resetCache", false, side.connector::resetCache);
            all &= done;
        }
        return all;
    }

    @Override
    public List<Measurement> takeMeasurements() {
        List<Measurement> taken = new ArrayList<>(measurements);
        measurements.clear();
        for (Side side : sides) {
            List<Measurement> own = side.call("takeMeasurements", List.of(), side.connector::takeMeasurements);
            own.forEach(each -> taken.add(MultiWorker.labelled(each, side.label)));
        }
        return taken;
    }

    @Override
    public List<KvEvent> takeEvents() {
        List<KvEvent> taken = new ArrayList<>();
        for (Side side : sides) {
            List<KvEvent> events = side.call("takeEvents", List.of(), side.connector::takeEvents);
            taken.addAll(events);
            side.told |= !events.isEmpty();
            if (side.state == State.CLOSED && side.told) {
                // Its last events are lost and its blocks are gone: subscribers must forget them.
                side.told = false;
                taken.add(new KvEvent.AllBlocksCleared());
            }
        }
        return taken;
    }

    @Override
    public void close() {
        MultiWorker.closeAll(sides.stream()
                .filter(side -> side.state != State.CLOSED)
                .map(side -> {
                    side.state = State.CLOSED;
                    return (Runnable) side.connector::close;
                })
                .toList());
    }
}
