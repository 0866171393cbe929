package baton.cuda.kernel;

import baton.cuda.driver.Gpu.Stream;
import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import baton.kv.DType;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * A function of the elements at the same place of some rows. A thread computes {@link #ELEMENTS} neighbours, or one element where rows are not
 * aligned to them.
 *
 * @param inputs types of the rows that are read
 * @param gathers the first input's rows are those that an array of indices names
 * @param scalars numbers that the function has beside the elements
 */
record ElementKernel(
        String function, List<DType> inputs, DType output, boolean gathers, int scalars, Function computes) {
    private static final int THREADS = 256;
    private static final int ELEMENTS = 4;

    /** Code for one element. */
    interface Function {
        F32 of(PtxAssembler k, F32[] inputs, F32[] scalars);
    }

    /** A kernel of rows in their order. */
    static ElementKernel of(String function, List<DType> inputs, DType output, int scalars, Function computes) {
        return new ElementKernel(function, inputs, output, false, scalars, computes);
    }

    /** The kernels with aligned rows and without. */
    List<PtxKernel> kernels() {
        return List.of(kernel(ELEMENTS), kernel(1));
    }

    private String name(int elements) {
        StringBuilder name = new StringBuilder(function);
        inputs.forEach(type -> name.append('_').append(type));
        return name.append('_').append(output).append('_').append(elements).toString();
    }

    private PtxKernel kernel(int elements) {
        PtxAssembler k = new PtxAssembler(name(elements), THREADS);
        List<View> from = new ArrayList<>();
        for (int i = 0; i < inputs.size(); i++) {
            from.add(View.parameters(k, "from" + i, inputs.get(i)));
        }
        U64 indices = k.parameterU64("indices");
        View to = View.parameters(k, "to", output);
        U32 count = k.parameterU32("count");
        U32 heads = k.parameterU32("heads");
        U32 ofHead = k.parameterU32("ofHead");
        F32[] numbers = new F32[scalars];
        Arrays.setAll(numbers, i -> k.parameterF32("scalar" + i));

        HeadPart own = HeadPart.ofThread(k, count, heads, ofHead);
        U32 column = k.mul(own.part(), elements);
        U32 head = own.head();
        U32 row = own.row();
        F32[][] loaded = new F32[inputs.size()][];
        for (int i = 0; i < loaded.length; i++) {
            U32 source = gathers && i == 0 ? k.loadU32(k.at(indices, row, Integer.BYTES), 0) : row;
            loaded[i] = k.load(inputs.get(i), elements, from.get(i).at(k, source, head, column), 0);
        }
        F32[] results = new F32[elements];
        for (int e = 0; e < elements; e++) {
            F32[] atPlace = new F32[loaded.length];
            for (int i = 0; i < loaded.length; i++) {
                atPlace[i] = loaded[i][e];
            }
            results[e] = computes.of(k, atPlace, numbers);
        }
        k.store(output, to.at(k, row, head, column), 0, results);
        return k.kernel();
    }

    /** Enqueues the kernel. */
    void launch(Functions functions, Stream stream, List<DeviceRows> from, DeviceRows to, float... numbers) {
        launch(functions, stream, from, 0, to, numbers);
    }

    /** @param indices address of as many u32 as {@code to} has rows, if the kernel gathers */
    void launch(
            Functions functions, Stream stream, List<DeviceRows> from, long indices, DeviceRows to, float... numbers) {
        boolean aligned = to.isAligned(ELEMENTS) && from.stream().allMatch(rows -> rows.isAligned(ELEMENTS));
        int elements = aligned ? ELEMENTS : 1;
        int ofHead = to.columns() / elements;
        int count = Math.toIntExact((long) to.rows() * to.heads() * ofHead);
        Arguments arguments = new Arguments();
        from.forEach(arguments::add);
        arguments.add(indices).add(to).add(count).add(to.heads()).add(ofHead);
        for (float number : numbers) {
            arguments.add(number);
        }
        functions.launch(stream, name(elements), Math.ceilDiv(count, THREADS), arguments.toArray());
    }
}
