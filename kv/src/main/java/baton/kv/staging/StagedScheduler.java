package baton.kv.staging;

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
    /** Requests whose last match is for a load between steps. */
    private final Set<String> loadBetweenSteps = new HashSet<>();

    private List<Load> loads = new ArrayList<>();

    StagedScheduler(SchedulerConnector inner, int blockSize) {
        super(inner);
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
                    Arrays.copyOfRange(
                            blockTable,
                            computedTokens / blockSize,
                            Math.ceilDiv(computedTokens + externalTokens, blockSize)),
                    !loadBetweenSteps.remove(request.id())));
        }
    }

    @Override
    public ConnectorMetadata buildMetadata(ScheduledStep step) {
        int[] written = step.requests().stream()
                .flatMapToInt(each -> {
                    int end = each.computedTokens() + each.scheduledTokens();
                    return IntStream.range(each.computedTokens() / blockSize, Math.ceilDiv(end, blockSize))
                            .map(i -> each.blockTable()[i]);
                })
                .toArray();
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
