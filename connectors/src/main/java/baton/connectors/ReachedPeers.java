package baton.connectors;

import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.WorkerReport;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;

/**
 * The peers from which the last load succeeded, by a connector's names. Other peers may be unreachable: see
 * {@link baton.kv.connector.KvMatch.Tokens}. On the scheduler's thread.
 */
public final class ReachedPeers<K> {
    /** More are forgotten. */
    private static final int MOST = 10_000;

    private final Set<K> reached = new LinkedHashSet<>();
    /** Loads under way, by request. */
    private final Map<String, Load<K>> loads = new HashMap<>();

    private record Load<K>(K peer, int[] blocks) {}

    public boolean contains(K peer) {
        return reached.contains(peer);
    }

    /**
     * A prompt that a peer holds whole, behind the tokens that are here. Its last token is computed in any case, for its logits; the slot
     * of that token comes with its block.
     */
    public KvMatch match(KvRequest request, int computedTokens, K peer) {
        return request.promptLength() - 1 <= computedTokens
                ? new KvMatch.None()
                : new KvMatch.Tokens(request.promptLength() - computedTokens, true, contains(peer));
    }

    /** A request loads these blocks from a peer. */
    public void loads(String requestId, K peer, int[] blocks) {
        loads.put(requestId, new Load<>(peer, blocks.clone()));
    }

    /** The load is not wanted any more: its end says nothing. */
    public void forget(String requestId) {
        loads.remove(requestId);
    }

    /** Results of loads. */
    public void learn(WorkerReport report) {
        for (String id : report.received()) {
            Load<K> load = loads.remove(id);
            if (load == null) {
                continue;
            }
            reached.remove(load.peer);
            if (IntStream.of(load.blocks).noneMatch(report.invalidBlocks()::contains)) {
                reached.add(load.peer);
            }
        }
        while (reached.size() > MOST) {
            reached.remove(reached.iterator().next());
        }
    }
}
