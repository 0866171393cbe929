package baton.engine;

import baton.engine.model.Device;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvTransferConfig;
import java.nio.file.Path;
import java.util.Optional;
import java.util.OptionalInt;

/**
 * How to run a model: vLLM's engine arguments, where they apply.
 *
 * @param model directory of a Hugging Face checkpoint
 * @param dtype type of weights and KV cache; empty means the checkpoint's
 * @param maxModelLen tokens that prompt and output may have together; empty means the model's own limit
 * @param blockSize tokens in a KV block
 * @param maxNumSeqs sequences in one step
 * @param maxNumBatchedTokens tokens in one step; a longer prompt is prefilled in chunks
 * @param enablePrefixCaching whether blocks are shared among requests with equal prefixes
 * @param kvCacheBytes memory for KV blocks, of all ranks together
 * @param numBlocks blocks of the KV cache, instead of {@code kvCacheBytes}
 * @param maxWaiting requests that may wait before new ones are turned away
 * @param threads threads to compute with, all ranks together; empty means all cores, or those of {@code parallel}
 * @param parallel the ranks that share the model
 * @param device where to compute
 * @param seed of the sampling of requests that bring none
 * @param kvTransfer the exchange of KV caches with other instances
 */
public record EngineConfig(
        Path model,
        Optional<DType> dtype,
        OptionalInt maxModelLen,
        int blockSize,
        int maxNumSeqs,
        int maxNumBatchedTokens,
        boolean enablePrefixCaching,
        long kvCacheBytes,
        OptionalInt numBlocks,
        int maxWaiting,
        OptionalInt threads,
        ParallelConfig parallel,
        Device device,
        long seed,
        KvTransferConfig kvTransfer) {

    public EngineConfig {
        requirePositive("block_size", blockSize);
        requirePositive("max_num_seqs", maxNumSeqs);
        requirePositive("max_num_batched_tokens", maxNumBatchedTokens);
        requirePositive("max_waiting", maxWaiting);
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
        private Optional<DType> dtype = Optional.empty();
        private OptionalInt maxModelLen = OptionalInt.empty();
        private int blockSize = 16;
        private int maxNumSeqs = 128;
        private int maxNumBatchedTokens = 2048;
        private boolean enablePrefixCaching = true;
        private long kvCacheBytes = 1L << 30;
        private OptionalInt numBlocks = OptionalInt.empty();
        private int maxWaiting = 4096;
        private OptionalInt threads = OptionalInt.empty();
        private ParallelConfig parallel = ParallelConfig.SINGLE;
        private Device device = Device.AUTO;
        private long seed;
        private KvTransferConfig kvTransfer = KvTransferConfig.none();

        private Builder(Path model) {
            this.model = model;
        }

        public Builder dtype(DType value) {
            dtype = Optional.of(value);
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

        /** @throws ConfigException if a value is out of range or two do not fit together */
        public EngineConfig build() {
            return new EngineConfig(
                    model,
                    dtype,
                    maxModelLen,
                    blockSize,
                    maxNumSeqs,
                    maxNumBatchedTokens,
                    enablePrefixCaching,
                    kvCacheBytes,
                    numBlocks,
                    maxWaiting,
                    threads,
                    parallel,
                    device,
                    seed,
                    kvTransfer);
        }
    }
}
