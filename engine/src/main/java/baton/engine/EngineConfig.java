package baton.engine;

import baton.engine.model.Device;
import baton.engine.model.GenerationConfig;
import baton.engine.model.Quantization;
import baton.kv.BlockHashing;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.HashAlgorithm;
import baton.kv.KvTransferConfig;
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
 * @param kvCacheDtype type of the KV cache, bf16 or fp32; empty means {@code dtype}
 * @param maxModelLen tokens that prompt and output may have together; empty means the model's own limit
 * @param blockSize tokens in a KV block
 * @param maxNumSeqs sequences in one step
 * @param maxNumBatchedTokens tokens in one step; a longer prompt is prefilled in chunks
 * @param schedulingPolicy the order in which requests are served
 * @param longPrefillTokenThreshold tokens of one request's prompt in one step, 0 for as many as fit
 * @param enablePrefixCaching whether blocks are shared among requests with equal prefixes
 * @param kvCacheBytes memory for KV blocks, of all ranks together
 * @param numBlocks blocks of the KV cache, instead of {@code kvCacheBytes}
 * @param maxWaiting requests that may wait before new ones are rejected
 * @param threads threads to compute with, all ranks together; empty means all cores, or those of {@code parallel}
 * @param parallel the ranks that share the model
 * @param device where to compute
 * @param seed of the sampling of requests that bring none
 * @param kvTransfer the exchange of KV caches with other instances
 * @param hashing how blocks are hashed for the prefix cache, for stores by key, and in KV events
 * @param kvEvents whether listeners are notified of the KV cache's contents
 */
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
        long kvCacheBytes,
        OptionalInt numBlocks,
        int maxWaiting,
        OptionalInt threads,
        ParallelConfig parallel,
        Device device,
        long seed,
        KvTransferConfig kvTransfer,
        BlockHashing hashing,
        boolean kvEvents) {

    public EngineConfig {
        requirePositive("block_size", blockSize);
        requirePositive("max_num_seqs", maxNumSeqs);
        requirePositive("max_num_batched_tokens", maxNumBatchedTokens);
        requirePositive("max_waiting", maxWaiting);
        if (longPrefillTokenThreshold < 0) {
            throw new ConfigException(
                    "long_prefill_token_threshold",
                    "is " + longPrefillTokenThreshold + ", must be 0 (no limit) or positive");
        }
        if (kvCacheBytes <= 0) {
            throw new ConfigException("kv_cache_memory_bytes", "is " + kvCacheBytes + ", must be positive");
        }
        maxModelLen.ifPresent(value -> requirePositive("max_model_len", value));
        numBlocks.ifPresent(value -> requirePositive("num_gpu_blocks_override", value));
        threads.ifPresent(value -> requirePositive("threads", value));
        if (maxNumBatchedTokens < maxNumSeqs) {
            throw new ConfigException(
                    "max_num_batched_tokens",
                    "is " + maxNumBatchedTokens + ", must be at least max_num_seqs, which is " + maxNumSeqs);
        }
    }

    /** The defaults for a checkpoint directory. */
    public static Builder of(Path model) {
        return new Builder(model);
    }

    private static void requirePositive(String field, int value) {
        if (value <= 0) {
            throw new ConfigException(field, "is " + value + ", must be positive");
        }
    }

    /** Starts from the defaults. */
    public static final class Builder {
        private final Path model;
        private GenerationConfig generation = GenerationConfig.CHECKPOINT;
        private Optional<DType> dtype = Optional.empty();
        private Quantization quantization = Quantization.NONE;
        private Optional<DType> kvCacheDtype = Optional.empty();
        private OptionalInt maxModelLen = OptionalInt.empty();
        private int blockSize = 16;
        private int maxNumSeqs = 128;
        private int maxNumBatchedTokens = 2048;
        private SchedulingPolicy schedulingPolicy = SchedulingPolicy.FCFS;
        private int longPrefillTokenThreshold;
        private boolean enablePrefixCaching = true;
        private long kvCacheBytes = 1L << 30;
        private OptionalInt numBlocks = OptionalInt.empty();
        private int maxWaiting = 4096;
        private OptionalInt threads = OptionalInt.empty();
        private ParallelConfig parallel = ParallelConfig.SINGLE;
        private Device device = Device.AUTO;
        private long seed;
        private KvTransferConfig kvTransfer = KvTransferConfig.none();
        private BlockHashing hashing = BlockHashing.of(HashAlgorithm.SHA256, System.getenv());
        private boolean kvEvents;

        private Builder(Path model) {
            this.model = model;
        }

        public Builder generation(GenerationConfig value) {
            generation = value;
            return this;
        }

        public Builder dtype(DType value) {
            dtype = Optional.of(value);
            return this;
        }

        public Builder quantization(Quantization value) {
            quantization = value;
            return this;
        }

        public Builder kvCacheDtype(DType value) {
            kvCacheDtype = Optional.of(value);
            return this;
        }

        public Builder maxModelLen(int value) {
            maxModelLen = OptionalInt.of(value);
            return this;
        }

        public Builder blockSize(int value) {
            blockSize = value;
            return this;
        }

        public Builder maxNumSeqs(int value) {
            maxNumSeqs = value;
            return this;
        }

        public Builder maxNumBatchedTokens(int value) {
            maxNumBatchedTokens = value;
            return this;
        }

        public Builder schedulingPolicy(SchedulingPolicy value) {
            schedulingPolicy = value;
            return this;
        }

        public Builder longPrefillTokenThreshold(int value) {
            longPrefillTokenThreshold = value;
            return this;
        }

        public Builder enablePrefixCaching(boolean value) {
            enablePrefixCaching = value;
            return this;
        }

        public Builder kvCacheBytes(long value) {
            kvCacheBytes = value;
            return this;
        }

        public Builder numBlocks(int value) {
            numBlocks = OptionalInt.of(value);
            return this;
        }

        public Builder maxWaiting(int value) {
            maxWaiting = value;
            return this;
        }

        public Builder threads(int value) {
            threads = OptionalInt.of(value);
            return this;
        }

        public Builder parallel(ParallelConfig value) {
            parallel = value;
            return this;
        }

        public Builder device(Device value) {
            device = value;
            return this;
        }

        public Builder seed(long value) {
            seed = value;
            return this;
        }

        public Builder kvTransfer(KvTransferConfig value) {
            kvTransfer = value;
            return this;
        }

        public Builder hashing(BlockHashing value) {
            hashing = value;
            return this;
        }

        public Builder kvEvents(boolean value) {
            kvEvents = value;
            return this;
        }

        /** @throws ConfigException if a value is out of range or two do not fit together */
        public EngineConfig build() {
            return new EngineConfig(
                    model,
                    generation,
                    dtype,
                    quantization,
                    kvCacheDtype,
                    maxModelLen,
                    blockSize,
                    maxNumSeqs,
                    maxNumBatchedTokens,
                    schedulingPolicy,
                    longPrefillTokenThreshold,
                    enablePrefixCaching,
                    kvCacheBytes,
                    numBlocks,
                    maxWaiting,
                    threads,
                    parallel,
                    device,
                    seed,
                    kvTransfer,
                    hashing,
                    kvEvents);
        }
    }
}
