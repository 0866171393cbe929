package baton.connectors.onesided;

import java.util.List;
import java.util.OptionalLong;
import java.util.regex.Pattern;

/**
 * A notification between the transfer agents of two ranks. vLLM peers know {@link Heartbeat}, {@link Completion} and
 * {@link PushRegistration}; the others are only sent to Baton instances.
 *
 * <p>An attempt ({@link PushRegistration#attempt}) is one registration of a request. In notifications about a push a request may be known
 * only by the common part of both legs' ids ({@link RequestIdMap#commonId}), and may be yet to come; in a pull it is known by its exact id.
 */
public sealed interface PeerNotification {
    /**
     * A reader has read the blocks, or does not need them. To a vLLM peer's load: its blocks are written.
     *
     * @param requestId the owner's
     * @param notifications how many of these the notified rank gets: one of each rank that reads from it. To a load with blocks that are
     *     written, the owner's tensor parallel size
     */
    record Completion(String requestId, int notifications) implements PeerNotification {}

    /**
     * A reader still wants these requests' blocks: extends their leases.
     *
     * @param requestIds the owner's
     */
    record Heartbeat(List<String> requestIds) implements PeerNotification {
        public Heartbeat {
            requestIds = List.copyOf(requestIds);
        }
    }

    /** An instance, and where its side channel answers. */
    record Instance(String engineId, String host, int port, int tensorParallelSize) {}

    /**
     * A decode rank says where a request's blocks are to be written.
     *
     * @param requestId by which both sides know the request
     * @param decode the instance that has the blocks
     * @param localBlockIds the decode rank's blocks to write to, of each group of layers
     * @param prefill the instance that writes
     * @param prefillPipelineSize stages of {@code prefill}
     * @param permit token of the permit to write to these blocks, where one is needed; RDMA calls it an rkey
     */
    record PushRegistration(
            String requestId,
            Instance decode,
            List<int[]> localBlockIds,
            Instance prefill,
            int prefillPipelineSize,
            OptionalLong permit)
            implements PeerNotification {
        private static final Pattern PERMITTED = Pattern.compile("#[0-9a-f]{16}$");

        /**
         * Names this registration in the other notifications of the push. There are several attempts with permits under one request
         * id, and the end of one must not be taken for another's.
         */
        public String attempt() {
            return permit.isPresent() ? requestId + "#%016x".formatted(permit.getAsLong()) : requestId;
        }

        /** Whether the registration of that name has a permit. */
        public static boolean hasPermit(String attempt) {
            return PERMITTED.matcher(attempt).find();
        }
    }

    /** The request of a push that is registered again has come, so that the push will end. */
    record PushAccepted(String attempt) implements PeerNotification {}

    /**
     * Some pieces of a load are written in the layers {@code [firstLayer, endLayer)}; arrives after them.
     *
     * @param firstPiece of the load's pieces ({@link BlockMapping.Piece}), all of which to {@code endPiece} are written
     */
    record PushPart(String attempt, int firstLayer, int endLayer, int firstPiece, int endPiece)
            implements PeerNotification {}

    /**
     * All blocks of a push are written.
     *
     * @param prompt digest of the prompt that they are of
     * @param blocks the owner's
     * @param generations of each of {@code blocks}
     */
    record PushDone(String attempt, String prompt, int[] blocks, long[] generations) implements PeerNotification {}

    /** A push has failed; nothing is being written any more. A {@link PushDone} without blocks means the same. */
    record PushFailed(String attempt) implements PeerNotification {}

    /** The decode rank does not want the blocks any more. */
    record PushCancel(String attempt) implements PeerNotification {}

    /** The decode rank has, or does not need, the blocks that are pushed to it, of a request that may be yet to come. */
    record PushOver(Completion completion) implements PeerNotification {}
}
