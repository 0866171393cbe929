package baton.kv.staging;

import baton.kv.KvGroups;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.ForwardingScheduler;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.SchedulerConnector;
import baton.kv.staging.StagedMetadata.Load;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;

/** Adds to each step's metadata which blocks are loaded and written. */
final class StagedScheduler extends ForwardingScheduler {
    private final int blockSize;
    private final KvGroups groups;
    /** Requests with a last match for a load between steps. */
    private final Set<String> loadBetweenSteps = new HashSet<>();

    private List<Load> loads = new ArrayList<>();

    StagedScheduler(SchedulerConnector inner, int blockSize, KvGroups groups) {
        super(inner);
        this.groups = groups;
        this.blockSize = blockSize;
    }

    @Override
    public KvMatch match(KvRequest request, int computedTokens) {
        KvMatch match = super.match(request, computedTokens);
        if (match instanceof KvMatch.Tokens tokens && tokens.async()) {
            loadBetweenSteps.add(request.id());
        } else {
            loadBetweenSteps.remove(request.id());
        }
        return match;
    }

    @Override
    public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {
        super.onAllocated(request, blockTable, computedTokens, externalTokens);
        if (externalTokens > 0) {
            loads.add(new Load(
                    request.id(),
                    blocks(blockTable, computedTokens, computedTokens + externalTokens),
                    !loadBetweenSteps.remove(request.id())));
        }
    }

    private List<int[]> blocks(int[] blockTable, int from, int to) {
        return groups.blocks(blockTable, from / blockSize, Math.ceilDiv(to, blockSize));
    }

    @Override
    public ConnectorMetadata buildMetadata(ScheduledStep step) {
        List<List<int[]>> each = step.requests().stream()
                .map(request -> blocks(
                        request.blockTable(),
                        request.computedTokens(),
                        request.computedTokens() + request.scheduledTokens()))
                .toList();
        List<int[]> written = IntStream.range(0, groups.size())
                .mapToObj(group -> each.stream()
                        .flatMapToInt(blocks -> Arrays.stream(blocks.get(group)))
                        .toArray())
                .toList();
        List<Load> begun = loads;
        loads = new ArrayList<>();
        return new StagedMetadata(super.buildMetadata(step), begun, written);
    }

    @Override
    public Release onFinished(KvRequest request, RequestEnd end, int[] blockTable) {
        loadBetweenSteps.remove(request.id());
        return super.onFinished(request, end, blockTable);
    }
}
