package baton.engine.core;

import baton.engine.core.Scheduler.Counters;
import baton.engine.core.Scheduler.LoadFailure;
import baton.engine.model.ModelRunner.LoadedTokens;
import baton.kv.LoadFailurePolicy;
import baton.kv.Ticker;
import baton.kv.VerifyKv;
import baton.kv.connector.HiddenState;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.IntStream;

/**
 * Loads of KV from elsewhere, from their beginning to their end. A request with a load that failed computes the rest here, or fails, by
 * policy; the connector is not asked for it again.
 */
final class RemoteLoads {
    private final LoadFailurePolicy policy;
    private final VerifyKv verifyKv;
    private final int blockSize;
    private final KvCacheManager blocks;
    private final LiveRequests live;
    private final Counters counters;
    private final Ticker ticker;
    /** Requests that lost their blocks after the last step. */
    private final Set<String> takenBackSinceStep = new HashSet<>();

    /** @param ticker for when loads begin and end; nothing is decided by it */
    RemoteLoads(SchedulerConfig config, KvCacheManager blocks, LiveRequests live, Counters counters, Ticker ticker) {
        this.policy = config.loadFailurePolicy();
        this.verifyKv = config.verifyKv();
        this.blockSize = config.blockSize();
        this.blocks = blocks;
        this.live = live;
        this.counters = counters;
        this.ticker = ticker;
    }

    /**
     * A request without a load is scheduled.
     *
     * @param from tokens that are here
     * @param tokens behind these that the connector is to load for it; 0 for none
     */
    void begin(Request request, int from, int tokens) {
        request.loadingTokens = tokens;
        request.loadedFrom = from;
        request.loadedTo = from + tokens;
        request.unverified = tokens > 0 && verifiesAll();
        if (tokens > 0) {
            request.load.begin(ticker.nanos(), tokens);
        }
    }

    /** The position of the first token that is computed in a step which loads those from {@code from} to before {@code to}. */
    int firstAfterStepLoad(Request request, int from, int to) {
        return from < to && verifiesAll() ? firstCompared(request, from, to) : to;
    }

    private boolean verifiesAll() {
        return verifyKv != VerifyKv.OFF && verifyKv != VerifyKv.AUTO;
    }

    /** The position of the first loaded token that is computed again, to be compared in all layers; {@code to} if none is. */
    private int firstCompared(Request request, int from, int to) {
        if (blocks.hasWindows()) {
            // Of a part of the prompt the windows' blocks begin with those that the next token attends to.
            return to < request.length() ? to : to - 1;
        }
        return Math.max(from, to - verifyKv.lastTokens());
    }

    /** The tokens to compare with the model's in a step, if there are any. */
    Optional<LoadedTokens> toCompare(Request request) {
        return request.unverified
                ? Optional.of(new LoadedTokens(
                        request.tokens(request.loadedFrom, request.loadedTo), request.loadedFrom, verifyKv))
                : Optional.empty();
    }

    /** The blocks of a request's loaded tokens, which are not those of the model. */
    IntStream loadedBlocks(Request request) {
        return request.blocks.between(request.loadedFrom / blockSize, blocks.blocksFor(request.loadedTo));
    }

    /**
     * Blocks failed to load: each request that holds one of them keeps only the tokens before its first failed block.
     *
     * @param deviating requests with wrong blocks that were loaded completely: they do not end, whatever the policy
     * @param failures takes requests to end with an error
     * @return the requests that have such blocks among their computed ones
     */
    Set<Request> cutAtInvalidBlocks(Set<Integer> invalid, Set<Request> deviating, List<LoadFailure> failures) {
        Set<Request> cut = new HashSet<>();
        if (invalid.isEmpty()) {
            return cut;
        }
        for (int block : invalid) {
            if (!blocks.invalidate(block)) {
                counters.unknownReports++;
            }
        }
        Set<Integer> recomputed = new HashSet<>();
        for (Request request : live.all()) {
            int[] bad = request.blocks.indicesOf(invalid);
            boolean compared = request.unverified;
            int known = compared ? request.loadedTo : request.computedTokens;
            if (bad.length == 0 || bad[0] * blockSize >= known) {
                continue;
            }
            // Of a shorter prefix the windows' blocks may be gone.
            int first = blocks.hasWindows() ? 0 : bad[0];
            cut.add(request);
            boolean ends = (policy == LoadFailurePolicy.FAIL && !deviating.contains(request))
                    || request.missesCacheThreshold(first * blockSize);
            countFailure(request, ends ? 0 : known - first * blockSize);
            blocks.invalidateFrom(request, first);
            request.loadedTo = Math.max(request.loadedFrom, Math.min(request.loadedTo, request.computedTokens));
            request.unverified &= request.loadedTo > request.loadedFrom;
            request.connectorDone = true;
            request.hidden = null;
            request.externalHit = Math.max(0, Math.min(request.externalHit, request.computedTokens - request.localHit));
            if (ends) {
                failures.add(new LoadFailure(request, bad.length));
            } else if (request.state != Request.State.WAITING_FOR_REMOTE_KVS
                    && (compared || request.computedTokens == 0 || !recomputed.add(request.blocks.get(0, first)))) {
                // Nothing is left, or another request computes the next block anyway: this one may share the blocks of
                // others. The connector may have saved or sent compared blocks, so it is notified of a new start.
                live.waitAgain(request);
                takenBackSinceStep.add(request.id());
            }
        }
        return cut;
    }

    private void countFailure(Request request, int recomputedTokens) {
        request.load.fail();
        counters.loadFailures++;
        counters.recomputedTokens += recomputedTokens;
    }

    /**
     * A load between steps is over.
     *
     * @param hidden the hidden state of the prompt's last token, if it came too
     * @param unverified whether its blocks came without digests of their sender
     * @param failures requests that end because of this step's report
     * @return false if no such load was under way
     */
    boolean received(String id, Optional<HiddenState> hidden, boolean unverified, List<LoadFailure> failures) {
        Optional<Request> loading =
                live.find(id).filter(request -> request.state == Request.State.WAITING_FOR_REMOTE_KVS);
        if (loading.isEmpty()) {
            return false;
        }
        Request request = loading.get();
        request.state = Request.State.WAITING;
        request.loadingTokens = 0;
        request.load.end(ticker.nanos());
        if (failures.stream().anyMatch(failure -> failure.request() == request)) {
            return true;
        }
        if (request.computedTokens == 0) {
            live.waitAgain(request);
            return true;
        }
        request.unverified |= verifyKv == VerifyKv.AUTO && unverified && request.loadedTo > request.loadedFrom;
        if (request.unverified) {
            // They are shared when they have been compared, in the step that computes the next token.
            request.computedTokens = firstCompared(request, request.loadedFrom, request.loadedTo);
            return true;
        }
        if (hidden.isPresent()
                && request.length() == request.promptLength()
                && request.computedTokens == request.length()) {
            request.hidden = hidden.get();
        } else {
            // The last token is computed here, for its logits.
            request.computedTokens = Math.min(request.computedTokens, request.length() - 1);
        }
        blocks.publish(request, live.waiting()::wake);
        return true;
    }

    /**
     * All loads under way have failed, and nothing more will be reported of them. Their requests wait again, without the blocks that may
     * have been loaded.
     *
     * @return requests to end with an error
     */
    List<LoadFailure> failAll() {
        List<LoadFailure> failures = new ArrayList<>();
        for (Request request : live.all()) {
            if (request.loadingTokens == 0) {
                continue;
            }
            countFailure(request, policy == LoadFailurePolicy.FAIL ? 0 : request.loadingTokens);
            if (policy == LoadFailurePolicy.FAIL) {
                failures.add(new LoadFailure(request, blocks.blocksFor(request.loadingTokens)));
            }
            request.externalHit = 0;
            request.connectorDone = true;
            live.waitAgain(request);
        }
        return failures;
    }

    /** Ids of requests that have lost their blocks since {@link #forgetTakenBack}, because of a failed load. */
    Set<String> takenBack() {
        return takenBackSinceStep;
    }

    /** The connector has been notified of the blocks up to here. */
    void forgetTakenBack() {
        takenBackSinceStep.clear();
    }
}
