package baton.engine.core;

import baton.engine.core.Scheduler.Slice;
import baton.kv.InvalidFieldException;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** A step while it is being scheduled: its slices so far, and the tokens and rows of logits that are left of its budget. */
final class StepPlan {
    private final int maxTokensOfRequest;
    private final Map<Request, Slice> slices = new LinkedHashMap<>();
    private final Set<String> preempted = new HashSet<>();
    private final Map<Request, InvalidFieldException> refused = new LinkedHashMap<>();
    private final Set<Request> cacheMisses = new LinkedHashSet<>();
    private int tokensLeft;
    /** Rows of logits that this step may still make for prompt log probabilities. */
    private int logitsRowsLeft;

    StepPlan(SchedulerConfig config) {
        this.maxTokensOfRequest = config.maxTokensOfRequest();
        this.tokensLeft = config.maxNumBatchedTokens();
        this.logitsRowsLeft = config.maxLogitsRows();
    }

    /** True if no tokens are left. */
    boolean isFull() {
        return tokensLeft == 0;
    }

    /**
     * How many of the request's tokens from {@code start} on this step can compute. Prompt log probabilities need the logits of
     * every token of a prompt; of these a step makes a bounded number, for all requests together.
     */
    int tokensFor(Request request, int start) {
        int count = Math.min(Math.min(request.length() - start, maxTokensOfRequest), tokensLeft);
        return request.lacksPromptLogprobs(start) ? Math.min(count, logitsRowsLeft) : count;
    }

    /** Adds that many of the request's tokens, as {@link #tokensFor} allows. */
    void add(Request request, int start, int count) {
        if (request.lacksPromptLogprobs(start)) {
            logitsRowsLeft -= count;
        }
        slices.put(request, new Slice(request, start, count));
        tokensLeft -= count;
    }

    /** Leaves out a request that has lost its blocks to another one. */
    void preempt(Request victim) {
        Slice taken = slices.remove(victim);
        if (taken != null) {
            tokensLeft += taken.count();
        }
        preempted.add(victim.id());
    }

    /** The connector refuses a request, which is not scheduled. */
    void refuse(Request request, InvalidFieldException why) {
        refused.put(request, why);
    }

    /** Caches hold less of the request than it requires, so it is not scheduled. */
    void missCache(Request request) {
        cacheMisses.add(request);
    }

    /** The slices in the order of the batch. */
    List<Slice> slices() {
        return List.copyOf(slices.values());
    }

    /** Ids of requests that have lost their blocks to other ones. */
    Set<String> preempted() {
        return Collections.unmodifiableSet(preempted);
    }

    List<Request> cacheMisses() {
        return List.copyOf(cacheMisses);
    }

    Map<Request, InvalidFieldException> refused() {
        return Collections.unmodifiableMap(refused);
    }
}
