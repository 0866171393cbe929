package baton.engine.model;

import baton.engine.kernel.ParallelFor;
import baton.engine.kernel.Rows;
import baton.kv.DType;
import java.lang.foreign.MemorySegment;

/**
 * A matrix of activations in native memory, valid as long as that. Kernels of machine code take it as it is, LibTorch's operators as a tensor ({@link LibTorch#tensor}).
 *
 * @param memory from the first row's first element to the last row's last one, open to all threads
 * @param stride elements from a row to the next one
 */
public record Matrix(MemorySegment memory, int rows, int columns, long stride, DType type) {
    /** Rows that a thread converts or adds at once. */
    static final int PIECE = 16;

    /** Without gaps between rows. */
    public static Matrix dense(MemorySegment memory, long rows, long columns, DType type) {
        return new Matrix(memory, Math.toIntExact(rows), Math.toIntExact(columns), columns, type);
    }

    static long bytes(long rows, long columns, long stride, DType type) {
        return rows == 0 ? 0 : ((rows - 1) * stride + columns) * type.bytes();
    }

    /** Some of its rows; the matrix itself if those are all. */
    public Matrix part(long first, long count) {
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

    /**
     * Converts these rows to another type, rounded to nearest even.
     *
     * @param to as many rows, as wide
     */
    public void convert(Matrix to, ParallelFor threads) {
        threads.parallelFor(rows, PIECE, (_, first, end) -> {
            RowBuffer buffer = new RowBuffer(type == to.type ? 0 : columns);
            for (int row = first; row < end; row++) {
                if (type == to.type) {
                    copyRow(row, to, row);
                } else {
                    buffer.load(this, row, 0, columns);
                    buffer.store(to, row, 0, columns);
                }
            }
        });
    }

    /**
     * Adds these rows, times a factor, to others.
     *
     * @param to as many rows, as wide
     */
    void addTo(Matrix to, float factor, ParallelFor threads) {
        threads.parallelFor(rows, PIECE, (_, first, end) -> {
            RowBuffer addend = new RowBuffer(columns);
            RowBuffer sum = new RowBuffer(columns);
            for (int row = first; row < end; row++) {
                addRow(row, factor, to, row, addend, sum);
            }
        });
    }

    /**
     * Adds a row, times a factor, to one of another matrix.
     *
     * @param to as wide
     * @param addend memory for the row, as {@code sum} is for the other one
     */
    void addRow(int row, float factor, Matrix to, int toRow, RowBuffer addend, RowBuffer sum) {
        addend.load(this, row, 0, columns);
        addend.multiply(factor, columns);
        sum.load(to, toRow, 0, columns);
        sum.add(addend, columns);
        sum.store(to, toRow, 0, columns);
    }

    /** Where the rows lie, in bytes. */
    Rows inBytes() {
        return new Rows(memory, stride * type.bytes(), type);
    }
}
