package baton.engine;

import java.util.Optional;

/**
 * An engine's load after its latest step.
 *
 * @param running requests that are being computed
 * @param waiting requests that are not
 * @param waitingForRemoteKv those of the waiting whose KV is being loaded
 * @param lingering requests that have ended while transfers still use their blocks, those kept for a peer among them
 * @param totalBlocks blocks of the KV cache
 * @param usedBlocks blocks held by requests; cached blocks that nobody holds are not counted
 * @param failure why the engine no longer works, if so
 */
public record EngineStatus(
        int running,
        int waiting,
        int waitingForRemoteKv,
        int lingering,
        int totalBlocks,
        int usedBlocks,
        Optional<String> failure) {
    /** True if there is no request, and none of an ended one's blocks is needed. */
    public boolean isAtRest() {
        return running == 0 && waiting == 0 && lingering == 0;
    }
}
