package baton.router.policy;

import baton.kv.GeneratedBuilder;
import baton.kv.Require;

/**
 * When a decode instance alone serves a completion, and so computes the prompt itself.
 *
 * @param asFallback when no prefill instance is healthy or the prefill leg has failed for good, instead of an error
 * @param belowBytes when the field {@code prompt} or {@code messages} has fewer bytes of JSON
 * @param uncachedBelowBytes when it has fewer bytes that the decode instance probably does not have
 * @param prefillBusy when each prefill instance has as many requests under way
 * @param goals when these are kept better so, as the router predicts from its measurements; for prompts that the thresholds leave open
 * @param split for which prompts it computes a part only
 */
@GeneratedBuilder
public record LocalPrefill(
        boolean asFallback,
        int belowBytes,
        int uncachedBelowBytes,
        int prefillBusy,
        LatencyGoals goals,
        SplitPrompts split)
        implements LocalPrefillBuilder.With {
    public static final LocalPrefill NEVER = new LocalPrefill(false, 0, 0, Integer.MAX_VALUE);

    /** Without goals, of whole prompts. */
    public LocalPrefill(boolean asFallback, int belowBytes, int uncachedBelowBytes, int prefillBusy) {
        this(asFallback, belowBytes, uncachedBelowBytes, prefillBusy, LatencyGoals.NONE, SplitPrompts.OFF);
    }

    /** @throws baton.kv.ConfigException if a threshold is out of range */
    public LocalPrefill {
        Require.atLeast("local prefill threshold", belowBytes, 0);
        Require.atLeast("local prefill uncached threshold", uncachedBelowBytes, 0);
        Require.atLeast("local prefill busy", prefillBusy, 1);
    }
}
