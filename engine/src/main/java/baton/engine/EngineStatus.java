package baton.engine;

import baton.kv.GeneratedBuilder;
import java.util.Optional;

/**
 * An engine's load after its latest step.
 *
 * @param running requests that are being computed
 * @param waiting requests that are not being computed
 * @param waitingToLoad waiting requests that are to load KV, and have no blocks for it yet
 * @param waitingForRemoteKv those of the waiting requests for which KV is being loaded
 * @param waitingLoaded waiting requests that have loaded their KV
 * @param awaitingRelease requests that have ended while transfers still use their blocks, or a lease keeps them for a peer
 * @param totalBlocks blocks of the KV cache
 * @param usedBlocks blocks held by requests; cached blocks that no request holds are not counted
 * @param storing whether computed values are on their way to a store
 * @param failure why the engine no longer works, if so
 * @param blocking a call of the connector for which the engine waits too long
 */
@GeneratedBuilder
public record EngineStatus(
        int running,
        int waiting,
        int waitingToLoad,
        int waitingForRemoteKv,
        int waitingLoaded,
        int awaitingRelease,
        int totalBlocks,
        int usedBlocks,
        boolean storing,
        Optional<String> failure,
        Optional<ConnectorCall> blocking) {
    /** True if there is no request, none of an ended one's blocks is needed, and nothing is on its way to a store. */
    public boolean isAtRest() {
        return running == 0 && waiting == 0 && awaitingRelease == 0 && !storing;
    }
}
