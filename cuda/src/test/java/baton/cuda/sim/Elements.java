package baton.cuda.sim;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;

/** Registers that are loaded from memory or stored there, one after the other. */
final class Elements {
    static final VarHandle SHORT = MethodHandles.byteArrayViewVarHandle(short[].class, ByteOrder.LITTLE_ENDIAN);
    static final VarHandle INT = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);
    static final VarHandle LONG = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);

    private final int bytes;
    private final Operands.Row[] rows;
    /** Where all are registers of 32 bits and so many in memory, the first lanes of their rows. */
    private final int[] words;

    /** @param bytes of each in memory */
    Elements(int bytes, Operands.Row... rows) {
        this.bytes = bytes;
        this.rows = rows;
        boolean plain = bytes == Integer.BYTES && Arrays.stream(rows).noneMatch(Operands.Row::wide);
        this.words = plain ? Arrays.stream(rows).mapToInt(Operands.Row::first).toArray() : new int[0];
    }

    /** The bytes in memory of all elements; of an instruction without registers, those of one. */
    int size() {
        return bytes * Math.max(1, rows.length);
    }

    void load(Warp warp, int lane, byte[] from, int first) {
        for (int i = 0; i < words.length; i++) {
            warp.words[words[i] + lane] = (int) INT.get(from, first + i * Integer.BYTES);
        }
        for (int i = words.length; i < rows.length; i++) {
            Operands.Row row = rows[i];
            int at = first + i * bytes;
            long value = switch (bytes) {
                case 1 -> from[at] & 0xff;
                case Short.BYTES -> (short) SHORT.get(from, at) & 0xffff;
                case Integer.BYTES -> (int) INT.get(from, at) & 0xffff_ffffL;
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
        for (int i = 0; i < words.length; i++) {
            INT.set(to, first + i * Integer.BYTES, warp.words[words[i] + lane]);
        }
        for (int i = words.length; i < rows.length; i++) {
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
