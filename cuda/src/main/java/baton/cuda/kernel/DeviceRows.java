package baton.cuda.kernel;

import baton.kv.DType;

/**
 * Rows of numbers in a device's memory, each of which may consist of heads. Strides are in elements.
 *
 * @param heads of a row; 1 for a matrix
 * @param columns of a head
 */
public record DeviceRows(long address, DType type, int rows, long rowStride, int heads, long headStride, int columns) {
    /** A matrix without gaps. */
    public static DeviceRows matrix(long address, DType type, int rows, int columns) {
        return new DeviceRows(address, type, rows, columns, 1, 0, columns);
    }

    /** Some columns of each head. */
    public DeviceRows columns(int first, int count) {
        return new DeviceRows(address + (long) first * type.bytes(), type, rows, rowStride, heads, headStride, count);
    }

    /** Columns of a matrix as heads, one after the other. */
    public DeviceRows heads(int count, int columnsOfHead) {
        return new DeviceRows(address, type, rows, rowStride, count, columnsOfHead, columnsOfHead);
    }

    /** Some of the rows. */
    public DeviceRows rows(int first, int count) {
        return new DeviceRows(
                address + first * rowStride * type.bytes(), type, count, rowStride, heads, headStride, columns);
    }

    /** Whether as many columns from each multiple of their number on can be accessed at once. */
    boolean isAligned(int elements) {
        return columns % elements == 0
                && rowStride % elements == 0
                && headStride % elements == 0
                && address % ((long) elements * type.bytes()) == 0;
    }
}
