package baton.cuda.model;

import baton.cuda.driver.Gpu;
import baton.kv.KvFence;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;

/** Numbers that a launch reads and writes, in pinned memory and in the device's, for a batch at a time. Guarded by the user's lock. */
final class BatchMemory {
    private final Gpu.Pinned host;
    private final Gpu.Buffer device;

    /** The fence of the last batch. */
    private KvFence used = KvFence.PASSED;

    private BatchMemory(Gpu gpu, long bytes) {
        this.host = gpu.pinned(bytes);
        try {
            this.device = gpu.allocate(bytes);
        } catch (RuntimeException e) {
            host.close();
            throw e;
        }
    }

    Gpu.Pinned host() {
        return host;
    }

    long address() {
        return device.address();
    }

    /** Writes numbers in host memory. */
    void put(long index, long... numbers) {
        for (int i = 0; i < numbers.length; i++) {
            host.memory().setAtIndex(ValueLayout.JAVA_LONG, index + i, numbers[i]);
        }
    }

    /** Copies the first numbers to the device. */
    void upload(Gpu.Stream stream, long count) {
        stream.copyToDevice(device.address(), host.memory().asSlice(0, count * Long.BYTES));
    }

    /** Releases the memory to another batch once the fence is passed. A failed batch has no fence and releases it at once. */
    void usedUntil(KvFence fence) {
        used = fence;
    }

    /** Memories for batches that overlap. */
    static final class Pool {
        private static final long LEAST_WORDS = 4096;

        private final Gpu gpu;
        private final List<BatchMemory> all = new ArrayList<>();

        Pool(Gpu gpu) {
            this.gpu = gpu;
        }

        /** Unused memory for as many numbers. */
        BatchMemory take(long words) {
            long bytes = Long.BYTES * Math.max(LEAST_WORDS, words);
            for (BatchMemory each : all) {
                if (bytes <= each.host.memory().byteSize() && each.used.isPassed()) {
                    return each;
                }
            }
            BatchMemory made = new BatchMemory(gpu, bytes);
            all.add(made);
            return made;
        }

        /** After the last batch. */
        void close(Owned owned) {
            for (BatchMemory each : all) {
                owned.add(each, each.host::close);
                owned.add(each, each.device::close);
            }
        }
    }
}
