package baton.cuda.sim;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/**
 * Registers that are loaded from memory or stored there, one after the other.
 *
 * @param bytes of each in memory
 * @param signed whether a narrow one is extended by its sign
 */
record Elements(int bytes, boolean signed, Operands.Row[] rows) {
    static final VarHandle SHORT = MethodHandles.byteArrayViewVarHandle(short[].class, ByteOrder.LITTLE_ENDIAN);
    static final VarHandle INT = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);
    static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);

    int size() {
        return bytes * rows.length;
    }

    void load(Warp warp, int lane, byte[] from, int first) {
        for (int i = 0; i < rows.length; i++) {
            Operands.Row row = rows[i];
            int at = first + i * bytes;
            if (bytes == Integer.BYTES && !row.wide()) {
                warp.words[row.first() + lane] = (int) INT.get(from, at);
                continue;
            }
            long value = switch (bytes) {
                case 1 -> signed ? from[at] : from[at] & 0xff;
                case Short.BYTES -> signed ? (short) SHORT.get(from, at) : (short) SHORT.get(from, at) & 0xffff;
                case Integer.BYTES -> signed ? (int) INT.get(from, at) : (int) INT.get(from, at) & 0xffff_ffffL;
                default -> (long) LONG.get(from, at);
            };
            if (row.wide()) {
                warp.longs[row.first() + lane] = value;
            } else {
                warp.words[row.first() + lane] = (int) value;
            }
        }
    }

    void store(Warp warp, int lane, byte[] to, int first) {
        for (int i = 0; i < rows.length; i++) {
            Operands.Row row = rows[i];
            int at = first + i * bytes;
            long value = row.wide() ? warp.longs[row.first() + lane] : warp.words[row.first() + lane];
            switch (bytes) {
                case 1 -> to[at] = (byte) value;
                case Short.BYTES -> SHORT.set(to, at, (short) value);
                case Integer.BYTES -> INT.set(to, at, (int) value);
                default -> LONG.set(to, at, value);
            }
        }
    }
}
