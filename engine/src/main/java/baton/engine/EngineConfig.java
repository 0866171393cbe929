package baton.engine;

import baton.engine.model.Device;
import baton.engine.model.GenerationConfig;
import baton.engine.model.Quantization;
import baton.kv.BlockHashing;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.GeneratedBuilder;
import baton.kv.HashAlgorithm;
import baton.kv.KvTransferConfig;
import baton.kv.Require;
import java.nio.file.Path;
import java.util.Optional;
import java.util.OptionalInt;

/**
 * How to run a model: vLLM's engine arguments, where they apply.
 *
 * @param model directory of a Hugging Face checkpoint
 * @param generation the defaults of sampling
 * @param dtype type of computation, and of weights that are not quantised; empty means the checkpoint's
 * @param quantization how the weights' matrices are kept
 * @param kvCacheDtype type of the KV cache, bf16, fp16, fp32 or fp8 (e4m3); empty means {@code dtype}
 * @param maxModelLen tokens that prompt and output may have together; empty means the model's own limit
 * @param blockSize tokens in a KV block
 * @param maxNumSeqs sequences in one step
 * @param maxNumBatchedTokens tokens in one step; a longer prompt is prefilled in chunks
 * @param schedulingPolicy the order in which requests are served
 * @param longPrefillTokenThreshold tokens of one request's prompt in one step, 0 for as many as fit
 * @param enablePrefixCaching whether blocks are shared among requests with equal prefixes
 * @param tenantCacheShare the share of the blocks, above 0 and at most 1, that cached blocks of one tenant ({@link
 *     baton.kv.connector.KvRequest#tenant}) may take before the oldest of them are evicted before all others
 * @param kvCacheBytes memory for KV blocks, of all ranks together
 * @param numBlocks blocks of the KV cache, instead of {@code kvCacheBytes}
 * @param maxWaiting requests that may wait before new ones are rejected
 * @param threads threads to compute with, all ranks together; empty means all cores, or those of {@code parallel}
 * @param parallel the ranks that share the model
 * @param device where to compute
 * @param seed of the sampling of requests that bring none
 * @param disableHybridKvCacheManager whether layers with a sliding window keep all positions, as the other layers do; empty: if there is a
 *     connector that takes blocks of all layers only
 * @param kvTransfer the exchange of KV caches with other instances
 * @param hashing how blocks are hashed for the prefix cache, for stores by key, and in KV events
 * @param kvEvents whether listeners are notified of the KV cache's contents
 */
@GeneratedBuilder
public record EngineConfig(
        Path model,
        GenerationConfig generation,
        Optional<DType> dtype,
        Quantization quantization,
        Optional<DType> kvCacheDtype,
        OptionalInt maxModelLen,
        int blockSize,
        int maxNumSeqs,
        int maxNumBatchedTokens,
        SchedulingPolicy schedulingPolicy,
        int longPrefillTokenThreshold,
        boolean enablePrefixCaching,
        double tenantCacheShare,
        long kvCacheBytes,
        OptionalInt numBlocks,
        int maxWaiting,
        OptionalInt threads,
        ParallelConfig parallel,
        Device device,
        long seed,
        Optional<Boolean> disableHybridKvCacheManager,
        KvTransferConfig kvTransfer,
        BlockHashing hashing,
        boolean kvEvents) {

    public EngineConfig {
        Require.positive("block_size", blockSize);
        Require.positive("max_num_seqs", maxNumSeqs);
        Require.positive("max_num_batched_tokens", maxNumBatchedTokens);
        Require.positive("max_waiting", maxWaiting);
        Require.atLeast("long_prefill_token_threshold", longPrefillTokenThreshold, 0);
        if (!(tenantCacheShare > 0 && tenantCacheShare <= 1)) {
            throw new ConfigException(
                    "tenant_cache_share", "is " + tenantCacheShare + ", must be more than 0 and at most 1");
        }
        Require.positive("kv_cache_memory_bytes", kvCacheBytes);
        maxModelLen.ifPresent(value -> Require.positive("max_model_len", value));
        numBlocks.ifPresent(value -> Require.positive("num_gpu_blocks_override", value));
        threads.ifPresent(value -> Require.positive("threads", value));
        if (maxNumBatchedTokens < maxNumSeqs) {
            throw new ConfigException(
                    "max_num_batched_tokens",
                    "is " + maxNumBatchedTokens + ", must be at least max_num_seqs, which is " + maxNumSeqs);
        }
    }

    /** Tokens of one request that a step computes at most. */
    public int maxTokensOfRequest() {
        return longPrefillTokenThreshold == 0
                ? maxNumBatchedTokens
                : Math.min(longPrefillTokenThreshold, maxNumBatchedTokens);
    }

    /** The defaults for a checkpoint directory. */
    public static EngineConfigBuilder of(Path model) {
        return EngineConfigBuilder.builder()
                .model(model)
                .generation(GenerationConfig.CHECKPOINT)
                .quantization(Quantization.NONE)
                .blockSize(16)
                .maxNumSeqs(128)
                .maxNumBatchedTokens(2048)
                .schedulingPolicy(SchedulingPolicy.FCFS)
                .enablePrefixCaching(true)
                .tenantCacheShare(1)
                .kvCacheBytes(1L << 30)
                .maxWaiting(4096)
                .parallel(ParallelConfig.SINGLE)
                .device(Device.AUTO)
                .kvTransfer(KvTransferConfig.none())
                .hashing(BlockHashing.of(HashAlgorithm.SHA256, System.getenv()));
    }
}
