package baton.cuda.kernel;

import baton.cuda.driver.Gpu.Stream;
import baton.cuda.ptx.Is;
import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.Operand.Pred;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import baton.kv.DType;

/** The code of rotations: a thread has a pair, or an element that is copied. */
record RotationKernel(DType from, DType to) {
    private static final int THREADS = 128;

    private String name() {
        return "rotate_" + from + "_" + to;
    }

    void launch(
            Functions functions,
            Stream stream,
            DeviceRows rows,
            long positions,
            long table,
            int rotated,
            boolean neighbours,
            DeviceRows result) {
        int pairs = rotated / 2;
        int parts = rows.columns() - pairs;
        int count = Math.multiplyExact(Math.multiplyExact(rows.rows(), rows.heads()), parts);
        functions.launch(
                stream,
                name(),
                Math.ceilDiv(count, THREADS),
                new Arguments()
                        .add(rows)
                        .add(result)
                        .add(positions)
                        .add(table)
                        .add(count)
                        .add(rows.heads())
                        .add(parts)
                        .add(pairs)
                        .add(neighbours ? 2 : 1)
                        .add(neighbours ? 1 : pairs)
                        .toArray());
    }

    PtxKernel kernel() {
        PtxAssembler k = new PtxAssembler(name(), THREADS);
        View source = View.parameters(k, "from", from);
        View target = View.parameters(k, "to", to);
        U64 positions = k.parameterU64("positions");
        U64 table = k.parameterU64("table");
        U32 count = k.parameterU32("count");
        U32 heads = k.parameterU32("heads");
        U32 parts = k.parameterU32("parts");
        U32 pairs = k.parameterU32("pairs");
        U32 step = k.parameterU32("step");
        U32 distance = k.parameterU32("distance");

        HeadPart own = HeadPart.ofThread(k, count, heads, parts);
        U32 part = own.part();
        U32 head = own.head();
        U32 row = own.row();
        U64 in = source.at(k, row, head);
        U64 out = target.at(k, row, head);
        Pred copied = k.test(part, Is.GE, pairs);
        k.when(
                copied,
                () -> {
                    U32 column = k.add(part, pairs);
                    F32 element = k.load(from, k.at(in, column, from.bytes()), 0);
                    k.store(to, k.at(out, column, to.bytes()), 0, element);
                },
                () -> {
                    U32 position = k.loadU32(k.at(positions, row, Integer.BYTES), 0);
                    U64 angles = k.at(table, position, k.wide(k.mul(pairs, 2 * Float.BYTES)));
                    U64 angle = k.at(angles, part, Float.BYTES);
                    F32 cosine = k.load(DType.F32, angle, 0);
                    F32 sine = k.load(DType.F32, k.at(angle, pairs, Float.BYTES), 0);
                    U32 column = k.mul(part, step);
                    U32 other = k.add(column, distance);
                    F32 x = k.load(from, k.at(in, column, from.bytes()), 0);
                    F32 y = k.load(from, k.at(in, other, from.bytes()), 0);
                    F32 turnedX = k.fma(x, cosine, k.neg(k.mul(y, sine)));
                    F32 turnedY = k.fma(y, cosine, k.mul(x, sine));
                    k.store(to, k.at(out, column, to.bytes()), 0, turnedX);
                    k.store(to, k.at(out, other, to.bytes()), 0, turnedY);
                });
        return k.kernel();
    }
}
