package baton.engine.core;

import baton.engine.SchedulingPolicy;
import baton.kv.LoadFailurePolicy;
import baton.kv.VerifyKv;

/**
 * The limits of a {@link Scheduler}'s step, in vLLM's names.
 *
 * @param blockSize tokens in a KV block
 * @param maxNumSeqs requests that run at once
 * @param maxNumBatchedTokens tokens that a step computes
 * @param maxLogitsRows rows of logits that a step makes for log probabilities of prompts
 * @param maxTokensOfRequest tokens that a step computes of one request
 * @param prefixCaching whether computed blocks are shared
 * @param verifyKv of loads; off if the model cannot compare
 */
record SchedulerConfig(
        int blockSize,
        int maxNumSeqs,
        int maxNumBatchedTokens,
        int maxLogitsRows,
        SchedulingPolicy policy,
        int maxTokensOfRequest,
        boolean prefixCaching,
        LoadFailurePolicy loadFailurePolicy,
        VerifyKv verifyKv) {}
