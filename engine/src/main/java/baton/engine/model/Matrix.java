package baton.engine.model;

import baton.engine.kernel.Rows;
import baton.kv.DType;
import java.lang.foreign.MemorySegment;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;

/**
 * A matrix of activations in native memory, valid as long as that. Kernels of machine code take it as it is, LibTorch's operators as a tensor.
 *
 * @param memory from the first row's first element to the last row's last one, open to all threads
 * @param stride elements from a row to the next one
 */
record Matrix(MemorySegment memory, int rows, int columns, long stride, DType type) {
    /** Without gaps between rows. */
    static Matrix dense(MemorySegment memory, long rows, long columns, DType type) {
        return new Matrix(memory, Math.toIntExact(rows), Math.toIntExact(columns), columns, type);
    }

    /** The tensor's memory, valid as long as the tensor; elements of a row are side by side. */
    static Matrix of(Tensor tensor) {
        long rows = tensor.size(0);
        long columns = tensor.size(1);
        long stride = rows > 1 ? tensor.stride(0) : columns;
        DType type = LibTorch.dtype(tensor);
        MemorySegment memory = LibTorch.memory(tensor, bytes(rows, columns, stride, type));
        return new Matrix(memory, Math.toIntExact(rows), Math.toIntExact(columns), stride, type);
    }

    private static long bytes(long rows, long columns, long stride, DType type) {
        return rows == 0 ? 0 : ((rows - 1) * stride + columns) * type.bytes();
    }

    /** The same memory, as a tensor of the caller's {@link PointerScope}. */
    Tensor tensor() {
        Tensor whole = LibTorch.over(memory, LibTorch.scalarType(type), rows, stride);
        return stride == columns ? whole : whole.narrow(1, 0, columns);
    }

    /** Some of its rows; the matrix itself if those are all. */
    Matrix part(long first, long count) {
        return first == 0 && count == rows ? this : part(first, count, 0, columns);
    }

    /** Some of each row's elements. */
    Matrix columns(long first, long count) {
        return part(0, rows, first, count);
    }

    private Matrix part(long firstRow, long rowCount, long firstColumn, long columnCount) {
        long start = (firstRow * stride + firstColumn) * type.bytes();
        return new Matrix(
                memory.asSlice(start, bytes(rowCount, columnCount, stride, type)),
                Math.toIntExact(rowCount),
                Math.toIntExact(columnCount),
                stride,
                type);
    }

    /** @param to as wide, of the same type */
    void copyRow(long row, Matrix to, long toRow) {
        MemorySegment.copy(
                memory,
                row * stride * type.bytes(),
                to.memory,
                toRow * to.stride * type.bytes(),
                (long) columns * type.bytes());
    }

    /**
     * Copies these rows to the first ones of a matrix.
     *
     * @param to as wide, of the same type
     * @return {@code to}
     */
    Matrix copyRows(long[] rows, Matrix to) {
        for (int i = 0; i < rows.length; i++) {
            copyRow(rows[i], to, i);
        }
        return to;
    }

    /** Where the rows lie, in bytes. */
    Rows inBytes() {
        return new Rows(memory, stride * type.bytes(), type);
    }
}
