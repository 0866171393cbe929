package baton.store.prompt;

import baton.kv.ConfigException;
import baton.kv.DType;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;

/**
 * How keys and values lie in a file's tensor {@code [tokens, kv_heads, 2*head_dim]}. vLLM's GPU backends store the key and then
 * the value of each token and head. Its CPU backend (CPU_ATTN) stores, under the same name and shape, its packed blocks
 * reinterpreted: of each block of {@code N} tokens and each head, element {@code x} of the packed area of
 * {@code 2*N*head_dim} elements is element {@code [x / (2*head_dim), head, x % (2*head_dim)]} of the block's part of the tensor.
 *
 * @param interior the order inside such an area
 * @param blockSize tokens in a block of the instance that writes or reads the file; of no meaning with {@link Interior#PLAIN}
 */
public record TensorLayout(Interior interior, int blockSize) {
    /** The key and then the value of each token and head. */
    public static final TensorLayout GPU = new TensorLayout(Interior.PLAIN, 1);

    private static final String RECORDED_GPU = "[tokens, kv_heads, k|v]";
    private static final int MAX_BLOCK_SIZE = 4096;

    /**
     * Where an element of a key or value is in the area of one block and head, {@code t} being the token in the block and
     * {@code d} the dimension. Taken from {@code reshape_and_cache} in vLLM's csrc/cpu/cpu_attn_vec.hpp, cpu_attn_vec16.hpp,
     * cpu_attn_amx.hpp, cpu_attn_neon.hpp and cpu_attn_neon_bfmmla.hpp.
     */
    public enum Interior {
        /** No areas. */
        PLAIN("gpu") {
            @Override
            int key(int t, int d, int blockSize, int headDim) {
                return t * 2 * headDim + d;
            }

            @Override
            int value(int t, int d, int blockSize, int headDim) {
                return t * 2 * headDim + headDim + d;
            }
        },
        /** Keys transposed, values in rows: x86 without AMX or not in bf16, ARM without bf16 matrix instructions. */
        VEC("cpu_attn_vec") {
            @Override
            int key(int t, int d, int blockSize, int headDim) {
                return d * blockSize + t;
            }

            @Override
            int value(int t, int d, int blockSize, int headDim) {
                return blockSize * headDim + t * headDim + d;
            }
        },
        /** bf16 on x86 with AMX. Keys: 16 tokens wide, in pairs of dimensions; values: 16 dimensions wide, in pairs of tokens. */
        AMX("cpu_attn_amx") {
            @Override
            int key(int t, int d, int blockSize, int headDim) {
                return t / 16 * 16 * headDim + d / 2 * 32 + t % 16 * 2 + d % 2;
            }

            @Override
            int value(int t, int d, int blockSize, int headDim) {
                return blockSize * headDim + d / 16 * 16 * blockSize + t / 2 * 32 + d % 16 * 2 + t % 2;
            }
        },
        /** bf16 on ARM with bf16 matrix instructions. Keys: 8 tokens by 4 dimensions; values: 2 dimensions by 4 tokens. */
        NEON_BF16("cpu_attn_neon_bf16") {
            @Override
            int key(int t, int d, int blockSize, int headDim) {
                return t / 8 * 8 * headDim + d / 4 * 32 + t % 8 * 4 + d % 4;
            }

            @Override
            int value(int t, int d, int blockSize, int headDim) {
                return blockSize * headDim + d / 2 * 2 * blockSize + t / 4 * 8 + d % 2 * 4 + t % 4;
            }
        };

        private final String settingName;

        Interior(String settingName) {
            this.settingName = settingName;
        }

        /** The element of the area that holds the key's. */
        abstract int key(int t, int d, int blockSize, int headDim);

        /** The element of the area that holds the value's. */
        abstract int value(int t, int d, int blockSize, int headDim);

        /** The value of a setting that names it. */
        public String settingName() {
            return settingName;
        }

        /** @throws ConfigException naming {@code field} if there is none of that name */
        public static Interior parse(String field, String name) {
            return ConfigException.choose(field, name, values(), Interior::settingName);
        }
    }

    /**
     * The layout of that interior.
     *
     * @param field the setting that names the interior, for errors
     * @param blockSize {@code --block-size} of the vLLM instances
     * @throws ConfigException if vLLM has no such blocks
     */
    public static TensorLayout of(String field, Interior interior, int blockSize, int headDim, DType dtype) {
        if (interior == Interior.PLAIN) {
            return GPU;
        }
        if (dtype == DType.F8_E4M3) {
            throw new ConfigException(
                    field,
                    "is %s, and this KV cache's type is %s, which is exchanged in vLLM's layout of GPUs only"
                            .formatted(interior.settingName, dtype.torchName()));
        }
        int multiple = interior == Interior.VEC ? 16 : 32;
        if (interior != Interior.VEC && dtype != DType.BF16) {
            throw new ConfigException(
                    field,
                    "is %s, which is for bfloat16; this KV cache's type is %s"
                            .formatted(interior.settingName, dtype.torchName()));
        }
        if (blockSize < multiple || blockSize > MAX_BLOCK_SIZE || blockSize % multiple != 0) {
            throw new ConfigException(
                    field,
                    "is %s, which takes blocks of a multiple of %d tokens, at most %d; the block size given is %d"
                            .formatted(interior.settingName, multiple, MAX_BLOCK_SIZE, blockSize));
        }
        if (headDim % multiple != 0) {
            throw new ConfigException(
                    field,
                    "is %s, which is for head sizes that are multiples of %d; this model's is %d"
                            .formatted(interior.settingName, multiple, headDim));
        }
        return new TensorLayout(interior, blockSize);
    }

    /** The layout's text in a file's metadata. */
    String recorded() {
        return interior == Interior.PLAIN ? RECORDED_GPU : interior.settingName + "/" + blockSize;
    }

    /**
     * The layout that a file's metadata name.
     *
     * @throws ConfigException if there is none
     */
    static TensorLayout parseRecorded(String field, String text, int headDim, DType dtype) {
        if (text.equals(RECORDED_GPU)) {
            return GPU;
        }
        int slash = text.indexOf('/');
        int blockSize;
        try {
            blockSize = Integer.parseInt(text.substring(slash + 1));
        } catch (NumberFormatException e) {
            throw new ConfigException(field, "is " + text + ", which this instance does not know", e);
        }
        return of(field, Interior.parse(field, text.substring(0, Math.max(0, slash))), blockSize, headDim, dtype);
    }

    /** Fills {@code plain}, the key and then the value of each token and head, from a file's data of the same size. */
    void unpack(MemorySegment file, MemorySegment plain, SharedStorage.Format format) {
        rearrange(file, plain, format, false);
    }

    /** The reverse of {@link #unpack}. */
    void pack(MemorySegment plain, MemorySegment file, SharedStorage.Format format) {
        rearrange(file, plain, format, true);
    }

    private void rearrange(MemorySegment file, MemorySegment plain, SharedStorage.Format format, boolean toFile) {
        int entry = 2 * format.headDim();
        long row = (long) format.kvHeads() * entry;
        long block = blockSize * row;
        long[] places = places(format.headDim(), entry, row);
        boolean narrow = format.dtype().bytes() == Short.BYTES;
        long elements = plain.byteSize() / format.dtype().bytes();
        for (long start = 0; start < elements; start += block) {
            for (int head = 0; head < format.kvHeads(); head++) {
                long area = start + (long) head * entry;
                for (int t = 0; t < blockSize; t++) {
                    if (narrow) {
                        shorts(file, area, plain, area + t * row, places, t * entry, entry, toFile);
                    } else {
                        ints(file, area, plain, area + t * row, places, t * entry, entry, toFile);
                    }
                }
            }
        }
    }

    /** The place in the tensor, from its area's start, of each element of the key and value of each token of a block. */
    private long[] places(int headDim, int entry, long row) {
        long[] places = new long[blockSize * entry];
        for (int t = 0; t < blockSize; t++) {
            for (int d = 0; d < headDim; d++) {
                int key = interior.key(t, d, blockSize, headDim);
                int value = interior.value(t, d, blockSize, headDim);
                places[t * entry + d] = key / entry * row + key % entry;
                places[t * entry + headDim + d] = value / entry * row + value % entry;
            }
        }
        return places;
    }

    private static void shorts(
            MemorySegment file,
            long area,
            MemorySegment plain,
            long to,
            long[] places,
            int first,
            int count,
            boolean toFile) {
        ValueLayout.OfShort element = ValueLayout.JAVA_SHORT_UNALIGNED;
        for (int i = 0; i < count; i++) {
            long inFile = area + places[first + i];
            if (toFile) {
                file.setAtIndex(element, inFile, plain.getAtIndex(element, to + i));
            } else {
                plain.setAtIndex(element, to + i, file.getAtIndex(element, inFile));
            }
        }
    }

    private static void ints(
            MemorySegment file,
            long area,
            MemorySegment plain,
            long to,
            long[] places,
            int first,
            int count,
            boolean toFile) {
        ValueLayout.OfInt element = ValueLayout.JAVA_INT_UNALIGNED;
        for (int i = 0; i < count; i++) {
            long inFile = area + places[first + i];
            if (toFile) {
                file.setAtIndex(element, inFile, plain.getAtIndex(element, to + i));
            } else {
                plain.setAtIndex(element, to + i, file.getAtIndex(element, inFile));
            }
        }
    }
}
