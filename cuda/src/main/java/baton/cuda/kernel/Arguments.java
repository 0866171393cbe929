package baton.cuda.kernel;

import java.util.stream.LongStream;

/** The arguments of a launch, in the order of the kernel's parameters. */
final class Arguments {
    private final LongStream.Builder values = LongStream.builder();

    /** Adds an argument of 64 or 32 bits. */
    Arguments add(long value) {
        values.add(value);
        return this;
    }

    Arguments add(double value) {
        return add(Functions.argument((float) value));
    }

    /** Adds the arguments of a {@link View}. */
    Arguments add(DeviceRows rows) {
        int bytes = rows.type().bytes();
        return add(rows.address()).add(rows.rowStride() * bytes).add(rows.headStride() * bytes);
    }

    long[] toArray() {
        return values.build().toArray();
    }
}
