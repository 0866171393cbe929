package baton.cuda.ptx;

import baton.cuda.ptx.Operand.Address;
import baton.cuda.ptx.Operand.B16;
import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.Operand.Pred;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.kv.DType;
import java.util.Arrays;
import java.util.function.BinaryOperator;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * Writes a kernel: {@link PtxWriter}'s control flow, {@link PtxInstructions}' arithmetic, and here memory, numbers of each {@link DType},
 * values of all threads together, and matrices of a warp.
 *
 * <p>An address of 64 bits is one in global memory, an address of 32 bits one in shared memory. Accesses are aligned to their size.
 */
public final class PtxAssembler extends PtxInstructions {
    /** Bytes that one instruction loads, stores or copies at most. */
    public static final int ACCESS = 16;

    private static final float E4M3_LARGEST = 448;
    private static final int E4M3_NAN = 0x7f;
    /** Bits of fp32's fraction behind those of e4m3. */
    private static final int E4M3_SHIFT = 20;

    /** @param threads of a block, a multiple of 32 */
    public PtxAssembler(String name, int threads) {
        super(name, threads);
    }

    /** The thread's number in the grid of one dimension. Threads with a number that is not below {@code count} end. */
    public U32 threadBelow(U32 count) {
        U32 number = mad(blockX(), threads(), thread());
        exitIf(test(number, Is.GE, count));
        return number;
    }

    // Memory

    private static String space(Address address) {
        return address instanceof U64 ? "global" : "shared";
    }

    private static Operand place(Address address, int offset) {
        return new U64(offset == 0 ? "[" + address.text() + "]" : "[" + address.text() + "+" + offset + "]");
    }

    private void load(String type, Address address, int offset, Operand... to) {
        write(
                "ld.%s%s.%s".formatted(space(address), vector(to.length), type),
                list(to),
                place(address, offset).text());
    }

    private void store(String type, Address address, int offset, Operand... from) {
        write(
                "st.%s%s.%s".formatted(space(address), vector(from.length), type),
                place(address, offset).text(),
                list(from));
    }

    private static String vector(int count) {
        return count == 1 ? "" : ".v" + count;
    }

    private static String list(Operand... values) {
        return values.length == 1
                ? values[0].text()
                : Stream.of(values).map(Operand::text).collect(Collectors.joining(", ", "{", "}"));
    }

    private U32[] newU32s(int count) {
        return Stream.generate(this::newU32).limit(count).toArray(U32[]::new);
    }

    public U32 loadU32(Address address, int offset) {
        return loadU32s(1, address, offset)[0];
    }

    /** @param count 1, 2 or 4 */
    public U32[] loadU32s(int count, Address address, int offset) {
        U32[] loaded = newU32s(count);
        load("u32", address, offset, loaded);
        return loaded;
    }

    /** Loads from global memory that no kernel writes at the same time, such as weights. */
    public U32[] loadConstants(int count, U64 address, int offset) {
        U32[] loaded = newU32s(count);
        write(
                "ld.global.nc%s.u32".formatted(vector(count)),
                list(loaded),
                place(address, offset).text());
        return loaded;
    }

    /** The same, or zeros, without reading, where the condition does not hold. */
    public U32[] loadConstants(int count, U64 address, int offset, Pred condition) {
        U32[] loaded = newU32s(count);
        for (U32 word : loaded) {
            set(word, u32(0));
        }
        guarded(
                condition,
                () -> write(
                        "ld.global.nc%s.u32".formatted(vector(count)),
                        list(loaded),
                        place(address, offset).text()));
        return loaded;
    }

    public U32 loadU8(Address address, int offset) {
        U32 loaded = newU32();
        load("u8", address, offset, loaded);
        return loaded;
    }

    public U64 loadU64(Address address, int offset) {
        U64 loaded = newU64();
        load("u64", address, offset, loaded);
        return loaded;
    }

    /** @param values 1, 2 or 4 */
    public void storeU32(Address address, int offset, U32... values) {
        store("u32", address, offset, values);
    }

    /** The lowest byte. */
    public void storeU8(Address address, int offset, U32 value) {
        store("u8", address, offset, value);
    }

    public void storeU64(Address address, int offset, U64 value) {
        store("u64", address, offset, value);
    }

    public F32 load(DType type, Address address, int offset) {
        return load(type, 1, address, offset)[0];
    }

    /**
     * Neighbouring elements, exactly.
     *
     * @param count a power of two; more than {@link #ACCESS} bytes are several accesses of as many bytes
     */
    public F32[] load(DType type, int count, Address address, int offset) {
        int atOnce = Math.min(count, ACCESS / type.bytes());
        F32[] loaded = new F32[count];
        for (int i = 0; i < count; i += atOnce) {
            F32[] part = loadPart(type, atOnce, address, offset + i * type.bytes());
            System.arraycopy(part, 0, loaded, i, atOnce);
        }
        return loaded;
    }

    /** A number of fp32, or 0, without reading, where the condition does not hold. */
    public F32 loadWhere(Pred condition, Address address, int offset) {
        F32 loaded = variable(f32(0));
        guarded(condition, () -> load("f32", address, offset, loaded));
        return loaded;
    }

    private F32[] loadPart(DType type, int count, Address address, int offset) {
        if (type == DType.F32) {
            F32[] loaded = Stream.generate(this::newF32).limit(count).toArray(F32[]::new);
            load("f32", address, offset, loaded);
            return loaded;
        }
        int bytes = count * type.bytes();
        if (bytes == 1) {
            return new F32[] {ofE4m3(loadU8(address, offset))};
        }
        if (bytes == 2) {
            B16 loaded = newB16();
            load("b16", address, offset, loaded);
            return type == DType.F8_E4M3
                    ? unpackE4m3(result("cvt.u32.u16", newU32(), loaded), 2)
                    : new F32[] {widen(type, loaded)};
        }
        return Stream.of(loadU32s(bytes / Integer.BYTES, address, offset))
                .flatMap(word -> Stream.of(unpack(type, word)))
                .toArray(F32[]::new);
    }

    /** The numbers in 32 bits, the lowest bits' first: two of 16 bits, four of 8, or one. */
    public F32[] unpack(DType type, U32 word) {
        return switch (type) {
            case F32 -> new F32[] {ofBits(word)};
            case BF16 -> new F32[] {ofBits(shl(word, 16)), ofBits(and(word, 0xffff0000))};
            case F16 -> {
                B16 low = newB16();
                B16 high = newB16();
                write("mov.b32", list(low, high), word.text());
                yield new F32[] {widen(type, low), widen(type, high)};
            }
            case F8_E4M3 -> unpackE4m3(word, 4);
        };
    }

    private F32[] unpackE4m3(U32 word, int count) {
        F32[] numbers = new F32[count];
        Arrays.setAll(numbers, i -> ofE4m3(and(shr(word, i * Byte.SIZE), 0xff)));
        return numbers;
    }

    private F32 widen(DType type, B16 number) {
        return type == DType.F16
                ? result("cvt.f32.f16", newF32(), number)
                : ofBits(shl(result("cvt.u32.u16", newU32(), number), 16));
    }

    private F32 ofE4m3(U32 bits) {
        U32 magnitude = and(bits, E4M3_NAN);
        // In fp32's place, where the exponent is 120 too small; the smallest ones are subnormal there too.
        F32 number = mul(ofBits(shl(magnitude, E4M3_SHIFT)), f32(0x1p120));
        U32 unsigned = select(test(magnitude, Is.EQ, E4M3_NAN), u32(0x7fc00000), bits(number));
        return ofBits(or(unsigned, shl(and(bits, 0x80), 24)));
    }

    /** Stores the nearest numbers of the type, the even one of two, as {@link DType#set} does. */
    public void store(DType type, Address address, int offset, F32... values) {
        int atOnce = Math.min(values.length, ACCESS / type.bytes());
        for (int i = 0; i < values.length; i += atOnce) {
            storePart(type, address, offset + i * type.bytes(), Arrays.copyOfRange(values, i, i + atOnce));
        }
    }

    private void storePart(DType type, Address address, int offset, F32... values) {
        if (type == DType.F32) {
            store("f32", address, offset, values);
            return;
        }
        int bytes = values.length * type.bytes();
        if (bytes == 1) {
            storeU8(address, offset, e4m3(values[0]));
        } else if (bytes == 2) {
            B16 half = newB16();
            switch (type) {
                case F8_E4M3 -> result("cvt.u16.u32", half, or(e4m3(values[0]), shl(e4m3(values[1]), Byte.SIZE)));
                case BF16 -> result("cvt.rn.bf16.f32", half, values[0]);
                default -> result("cvt.rn.f16.f32", half, values[0]);
            }
            store("b16", address, offset, half);
        } else {
            int ofWord = Integer.BYTES / type.bytes();
            U32[] words = new U32[bytes / Integer.BYTES];
            Arrays.setAll(words, i -> pack(type, Arrays.copyOfRange(values, i * ofWord, (i + 1) * ofWord)));
            storeU32(address, offset, words);
        }
    }

    /** Packs as many numbers as 32 bits have, the first one in the lowest bits, rounded as {@link #store} does. */
    public U32 pack(DType type, F32... values) {
        return switch (type) {
            case F32 -> bits(values[0]);
            case BF16 -> result("cvt.rn.bf16x2.f32", newU32(), values[1], values[0]);
            case F16 -> result("cvt.rn.f16x2.f32", newU32(), values[1], values[0]);
            case F8_E4M3 -> {
                U32 word = e4m3(values[0]);
                for (int i = 1; i < values.length; i++) {
                    word = or(word, shl(e4m3(values[i]), i * Byte.SIZE));
                }
                yield word;
            }
        };
    }

    private U32 e4m3(F32 value) {
        F32 magnitude = min(abs(value), f32(E4M3_LARGEST));
        U32 bits = bits(magnitude);
        U32 odd = and(shr(bits, E4M3_SHIFT), 1);
        U32 rounded = add(add(bits, (1 << E4M3_SHIFT - 1) - 1), odd);
        U32 normal = sub(shr(rounded, E4M3_SHIFT), u32(127 - 7 << 3));
        U32 subnormal = result("cvt.rni.u32.f32", newU32(), mul(magnitude, f32(0x1p9)));
        U32 number = select(test(magnitude, Is.LT, f32(0x1p-6)), subnormal, normal);
        return or(select(isNaN(value), u32(E4M3_NAN), number), shl(shr(bits(value), 31), 7));
    }

    // Values of several threads

    /** Bytes of shared memory that {@link #acrossBlock} takes. */
    public int scratchBytes() {
        return threads() / WARP * Float.BYTES;
    }

    /**
     * The values of all threads of the block together, the same in each: those of each warp by {@link #acrossLanes}, then of the warps in
     * their order. All threads of the block must be there.
     *
     * @param scratch shared memory of {@link #scratchBytes}, which may be used again for the next values
     */
    public F32 acrossBlock(F32 value, U32 scratch, BinaryOperator<F32> both) {
        F32 ofWarp = acrossLanes(value, WARP, both);
        int warps = threads() / WARP;
        if (warps == 1) {
            return ofWarp;
        }
        // Values before these are read by now.
        barrier();
        U32 own = mad(warp(), Float.BYTES, scratch);
        guarded(test(lane(), Is.EQ, 0), () -> store(DType.F32, own, 0, ofWarp));
        barrier();
        F32 all = load(DType.F32, scratch, 0);
        for (int i = 1; i < warps; i++) {
            all = both.apply(all, load(DType.F32, scratch, i * Float.BYTES));
        }
        return all;
    }

    // Copies from global to shared memory

    /** Starts to copy {@link #ACCESS} bytes, or to fill as many with zeros, without reading, where the condition does not hold. */
    public void copyAsync(U32 to, int offset, U64 from, Pred condition) {
        U32 bytes = select(condition, u32(ACCESS), u32(0));
        write(
                "cp.async.cg.shared.global",
                place(to, offset).text(),
                place(from, 0).text(),
                "" + ACCESS,
                bytes.text());
    }

    /** The thread's copies since the last group are a group. */
    public void commitCopies() {
        write("cp.async.commit_group");
    }

    /** Waits until at most as many of the thread's latest groups are not done. Other threads see the copies behind a barrier. */
    public void waitForCopies(int pending) {
        write("cp.async.wait_group", "" + pending);
    }

    // Matrices of a warp

    /**
     * Loads four matrices of 8 rows of 16 bytes from shared memory. Of each, lane l has the 4 bytes {@code 4 * (l % 4)} of row {@code l / 4}, or, if
     * they are transposed, elements {@code 2 * (l % 4)} and the next one of column {@code l / 4}.
     *
     * @param row of lane {@code 8 * m + r}: the address of row r of matrix m
     */
    public U32[] loadMatrices(boolean transposed, U32 row, int offset) {
        U32[] loaded = newU32s(4);
        write(
                "ldmatrix.sync.aligned.m8n8.x4%s.shared.b16".formatted(transposed ? ".trans" : ""),
                list(loaded),
                place(row, offset).text());
        return loaded;
    }

    /**
     * Adds to a matrix of 16 rows and 8 columns the product of 16 x 16 and 16 x 8 elements. Lane l has, with {@code g = l / 4} and {@code t = 2 *
     * (l % 4)}: of the sums rows {@code g, g, g + 8, g + 8} of columns {@code t, t + 1, t, t + 1}; of a rows {@code g, g + 8, g, g + 8} at {@code
     * t, t, t + 8, t + 8} and the next; of b column g at rows {@code t, t + 8} and the next.
     *
     * @param type {@link DType#BF16} or {@link DType#F16}
     * @param sums variables
     */
    public void multiply(DType type, F32[] sums, U32[] a, U32[] b) {
        String element = type == DType.BF16 ? "bf16" : "f16";
        write(
                "mma.sync.aligned.m16n8k16.row.col.f32.%s.%s.f32".formatted(element, element),
                list(sums),
                list(a),
                list(b),
                list(sums));
    }
}
