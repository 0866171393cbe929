package baton.connectors.onesided;

import baton.connectors.onesided.PeerNotification.Completion;
import baton.connectors.onesided.PeerNotification.PushRegistration;
import baton.kv.Bursts;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * A source is a request of this instance with a prompt to compute, or computed. A target is one rank of a decode instance that has
 * registered a push. Either may come first; they match by the request's id, or by the common part of both legs' ids. It is not known
 * ahead whether a source will be pushed: until a target comes, each layer costs a look at the notifications.
 *
 * Complete bytes are written at once: while a step computes, each layer of the blocks that the step fills, when the layer is done; bytes
 * that were complete before the target came, when it comes, even in the middle of a step. When all writes to a target are done it gets
 * PushDone with the generations of the blocks, and checks them with their checksums as after a read. If the push fails, it gets
 * PushFailed after the last write has stopped.
 */

/** Pushes one rank's blocks. The rank's thread owns it. */
public final class PushSender {
    private static final Logger log = LoggerFactory.getLogger(PushSender.class);

    static final String GIVEN_UP = "the prefill instance has given up the blocks";
    /** Targets that are waiting; more are refused. */
    private static final int MAX_TARGETS = 10_000;
    /** Abandoned requests that are remembered. */
    private static final int MAX_ABANDONED = 10_000;

    private final RankContext context;
    private final PeerDirectory peers;
    private final BlockChecksums checksums;
    /** Limits the log lines about registrations, as a peer may send many. */
    private final Bursts complaints;

    private final RequestIdMap<PromptSource> sources = new RequestIdMap<>();
    private final List<PushTarget> targets = new ArrayList<>();
    private final List<Written> written = new ArrayList<>();
    /** Requests with abandoned blocks: a push of them that is registered now fails. */
    private final RequestIdMap<AbandonedPrompt> abandoned = new RequestIdMap<>();

    /** @param answered agents that registered a push of its blocks and got its failure, with their attempt */
    private record AbandonedPrompt(String requestId, Map<String, String> answered, long until) {
        /** Whether a registration gets the failure: an agent's first attempt does, each time it comes; a later one may be of a request yet to come. */
        private boolean answers(PushTarget target) {
            String attempt = target.registration().attempt();
            String before = answered.putIfAbsent(target.agentName(), attempt);
            return before == null || (target.registration().permit().isPresent() && before.equals(attempt));
        }
    }

    /** A prompt of this instance, which may be pushed. */
    static final class PromptSource {
        final String requestId;
        final int promptLength;
        final String prompt;
        /** How many of the blocks are of each group of layers. */
        final List<Integer> ofGroups;
        /** Agents that registered a push of its blocks, with their attempt. */
        final Map<String, String> registeredBy = new HashMap<>();

        int[] blocks = {};
        /** Tokens that all layers have. */
        int complete;
        /** Tokens that the layers which are done have when this step is over. */
        int afterStep;

        private PromptSource(PromptProgress progress) {
            this.requestId = progress.requestId();
            this.promptLength = progress.promptLength();
            this.prompt = progress.prompt();
            this.ofGroups = progress.ofGroups();
        }
    }

    /**
     * All blocks of a request are written to a rank of a vLLM instance, which will not say so.
     *
     * @param agent of that rank
     */
    public record Written(String agent, Completion completion) {}

    /** @param checksums of the rank's blocks, which have their generations */
    public PushSender(RankContext context, PeerDirectory peers, BlockChecksums checksums) {
        this.context = context;
        this.peers = peers;
        this.checksums = checksums;
        this.complaints = new Bursts(1, Duration.ofSeconds(10), context.ticker());
    }

    public boolean isBusy() {
        return !targets.isEmpty();
    }

    /** Whether this step computes blocks that may be pushed. */
    public boolean isFed() {
        return sources.values().stream().anyMatch(source -> source.afterStep > source.complete);
    }

    /** A rank of a decode instance registers a push. */
    public void register(PushRegistration registration, String from) {
        for (PushTarget target : targets) {
            if (target.isRegisteredAs(registration.attempt(), from)
                    && (!target.hasFailed() || registration.permit().isPresent())) {
                target.accept(context.ticker().nanos());
                return;
            }
            // Where one has failed, this is the next attempt; it is answered after that one.
            if (!target.hasFailed()
                    && target.agentName().equals(from)
                    && target.registration().requestId().equals(registration.requestId())) {
                // Its cancellation was lost.
                target.leaveAlone("another attempt takes its place");
            }
        }
        if (targets.size() >= MAX_TARGETS) {
            complaints.event(more -> log.warn(
                    "A push of request {} to {} is refused: too many wait{}", registration.requestId(), from, more));
            return;
        }
        targets.add(new PushTarget(
                this, context, registration, from, context.ticker().nanos()));
    }

    /** The target does not want the blocks any more. If it has no permit to close, it gets the failure when the last write has stopped. */
    public void cancel(String attempt, String from) {
        for (PushTarget target : targets) {
            if (target.isRegisteredAs(attempt, from)) {
                if (target.registration().permit().isPresent()) {
                    target.leaveAlone("cancelled");
                } else {
                    target.fail("cancelled");
                }
            }
        }
    }

    /** A step begins. */
    public void begin(List<PromptProgress> progress, Set<String> preempted) {
        restart(preempted);
        for (PromptSource source : sources.values()) {
            // A step that failed has completed nothing.
            source.afterStep = source.complete;
        }
        for (PromptProgress each : progress) {
            PromptSource source = sources.get(each.requestId());
            if (source == null) {
                source = new PromptSource(each);
                sources.put(each.requestId(), source);
            }
            source.blocks = each.blocks();
            source.complete = each.before();
            source.afterStep = each.after();
        }
    }

    /** The requests' blocks do not count any more, those already written included: pushes of them begin again. */
    public void restart(Set<String> requestIds) {
        for (String id : requestIds) {
            PromptSource lost = sources.get(id);
            if (lost != null) {
                targetsOf(lost).forEach(PushTarget::restart);
                lost.complete = 0;
                lost.afterStep = 0;
            }
        }
    }

    /** The step's results are in place up to this layer. */
    public void layerIsDone(int layer) {
        for (PushTarget target : targets) {
            target.source()
                    .filter(source -> source.afterStep > source.complete)
                    .ifPresent(source -> target.write(source, source.afterStep, layer + 1));
        }
    }

    /** The blocks of the step are complete, with their checksums. */
    public void stepIsDone() {
        sources.values().forEach(source -> source.complete = source.afterStep);
    }

    /** All readers have the request's blocks, which may be reused. */
    void forget(String requestId) {
        PromptSource source = sources.get(requestId);
        if (source != null) {
            targetsOf(source).forEach(target -> target.fail(GIVEN_UP));
            sources.remove(requestId);
        }
    }

    /** The request's blocks may be reused, or it never had any; a push of them that is registered, or will be, has failed. */
    public void giveUp(String requestId, long now) {
        Map<String, String> answered = new HashMap<>();
        PromptSource source = sources.get(requestId);
        if (source != null) {
            answered.putAll(source.registeredBy);
            forget(requestId);
        } else {
            // A target that is not connected yet gets the failure when it is.
            for (PushTarget target : targets) {
                if (target.isBaton() && target.source().isEmpty() && target.isOf(requestId)) {
                    answered.put(target.agentName(), target.registration().attempt());
                    target.fail(GIVEN_UP);
                }
            }
        }
        // Several requests may have had this id: a registration means the last.
        String commonId = RequestIdMap.commonId(requestId);
        for (Optional<AbandonedPrompt> before = abandoned.find(commonId);
                before.isPresent();
                before = abandoned.find(commonId)) {
            before.get().answered().forEach(answered::putIfAbsent);
            abandoned.remove(before.get().requestId());
        }
        abandoned.remove(requestId);
        abandoned.put(
                requestId,
                new AbandonedPrompt(
                        requestId,
                        answered,
                        now + context.settings().pushRegistrationTimeout().toNanos()));
    }

    /** The agents to which the blocks of a request that has ended are being pushed, or will be when they are connected. */
    Set<String> readers(String requestId) {
        return targets.stream()
                .filter(target -> !target.hasFailed() && target.isOf(requestId))
                .map(PushTarget::agentName)
                .collect(Collectors.toSet());
    }

    /** @param id of a request, or the common part of its two legs' ids */
    boolean isRunning(String id) {
        return sources.find(id).isPresent();
    }

    private List<PushTarget> targetsOf(PromptSource source) {
        return targets.stream()
                .filter(target -> target.source().filter(source::equals).isPresent())
                .toList();
    }

    /** Writes to vLLM instances since the last call. */
    public List<Written> takeWritten() {
        List<Written> taken = List.copyOf(written);
        written.clear();
        return taken;
    }

    /** Goes on with all pushes as far as possible. */
    public void advance(long now) {
        while (!abandoned.isEmpty()) {
            AbandonedPrompt oldest = abandoned.values().iterator().next();
            if (abandoned.values().size() <= MAX_ABANDONED && now - oldest.until() < 0) {
                break;
            }
            abandoned.remove(oldest.requestId());
        }
        for (Iterator<PushTarget> all = targets.iterator(); all.hasNext(); ) {
            PushTarget target = all.next();
            if (target.advance(now)) {
                all.remove();
                target.release(now);
            }
        }
    }

    PeerDirectory peers() {
        return peers;
    }

    /** The id of the request with this id or this common id, if its prompt is here. */
    Optional<String> sourceId(String id) {
        return sources.find(id).map(source -> source.requestId);
    }

    Optional<PromptSource> source(String requestId) {
        return Optional.ofNullable(sources.get(requestId));
    }

    /** Whether a target gets the failure of a prompt that was given up. */
    boolean answersAbandoned(PushTarget target) {
        return abandoned
                .find(target.registration().requestId())
                .filter(lost -> lost.answers(target))
                .isPresent();
    }

    /** All blocks of a request are written to a rank of a vLLM instance. */
    void isWritten(String agentName, Completion completion) {
        written.add(new Written(agentName, completion));
    }

    long[] generations(int[] blocks) {
        return Arrays.stream(blocks).mapToLong(checksums::generation).toArray();
    }
}
