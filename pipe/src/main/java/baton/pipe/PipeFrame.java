package baton.pipe;

import baton.kv.KvDigest;
import baton.memory.Crc32c;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;

/**
 * A frame on a pipe's wire: before a tensor's bytes, and back from the receiver. Big endian, of a fixed size of {@value #BYTES}
 * bytes, because a wire does not delimit messages:
 *
 * <pre>
 *   0  int   magic
 *   4  byte  version
 *   5  byte  kind                       (1 and 4: a tensor with a checksum by CRC32C and by SUM61)
 *   6  byte  dtype                      (of a tensor, else 0)
 *   7  byte  dimensions                 (of a tensor, else 0)
 *   8  long  number of the tensor, counted from 0; of an acknowledgement: tensors received so far
 *  16  long  bytes that follow          (of a tensor, else 0)
 *  24  long  sizes of eight dimensions  (unused ones 0)
 *  88  int   checksum of the bytes that follow, by {@link TensorDigest} (of a tensor, else 0)
 *  92  int   CRC32C of the frame before this field
 * </pre>
 *
 * A tensor's bytes follow in pieces of {@value #PIECE}; the last one may be smaller.
 */
sealed interface PipeFrame {
    int BYTES = 96;

    /** Both sides move a tensor in the same pieces, as NCCL and Gloo want. */
    long PIECE = 16 << 20;

    /** Offset of the frame's checksum. */
    int SEAL = BYTES - Integer.BYTES;

    int MAGIC = 0x42544e50;
    int VERSION = 2;

    /** Nothing to send; shows that this side is alive. */
    record Alive() implements PipeFrame {}

    /**
     * A tensor; its bytes follow.
     *
     * @param digest the kind of the checksum: {@link KvDigest#CRC32C} or {@link KvDigest#SUM61}
     * @param checksum of these
     */
    record Announced(long number, Tensor.Type type, List<Long> shape, long bytes, KvDigest digest, int checksum)
            implements PipeFrame {
        public Announced {
            shape = List.copyOf(shape);
        }
    }

    /** Back to the sender: so many tensors were received. */
    record Taken(long count) implements PipeFrame {}

    /** Writes the frame to the segment. */
    default void write(MemorySegment to) {
        to.fill((byte) 0);
        to.set(Format.INT, 0, MAGIC);
        to.set(ValueLayout.JAVA_BYTE, 4, (byte) VERSION);
        switch (this) {
            case Alive() -> to.set(ValueLayout.JAVA_BYTE, 5, (byte) 0);
            case Announced(long number, var type, var shape, long bytes, var digest, int checksum) -> {
                to.set(ValueLayout.JAVA_BYTE, 5, (byte) (digest == KvDigest.SUM61 ? 4 : 1));
                to.set(ValueLayout.JAVA_BYTE, 6, (byte) Format.TYPES.indexOf(type));
                to.set(ValueLayout.JAVA_BYTE, 7, (byte) shape.size());
                to.set(Format.LONG, 8, number);
                to.set(Format.LONG, 16, bytes);
                for (int i = 0; i < shape.size(); i++) {
                    to.set(Format.LONG, 24 + 8L * i, shape.get(i));
                }
                to.set(Format.INT, 88, checksum);
            }
            case Taken(long count) -> {
                to.set(ValueLayout.JAVA_BYTE, 5, (byte) 3);
                to.set(Format.LONG, 8, count);
            }
        }
        seal(to);
    }

    /** Writes the checksum of the frame. */
    static void seal(MemorySegment frame) {
        frame.set(Format.INT, SEAL, Crc32c.of(frame.asSlice(0, SEAL)));
    }

    /**
     * Reads a received frame; untrusted.
     *
     * @param most bytes that a tensor may have
     * @throws PipeException if it is invalid
     */
    static PipeFrame read(MemorySegment from, long most) throws PipeException {
        int magic = from.get(Format.INT, 0);
        int version = from.get(ValueLayout.JAVA_BYTE, 4);
        if (magic != MAGIC || version != VERSION) {
            throw new PipeException(
                    "the bytes received are no frame of a pipe: they begin with %08x %02x".formatted(magic, version));
        }
        int checksum = Crc32c.of(from.asSlice(0, SEAL));
        if (from.get(Format.INT, SEAL) != checksum) {
            throw new PipeException("a frame was damaged on its way: its checksum is %08x, that of its bytes %08x"
                    .formatted(from.get(Format.INT, SEAL), checksum));
        }
        long number = from.get(Format.LONG, 8);
        if (number < 0) {
            throw new PipeException("a frame has number " + number);
        }
        int kind = from.get(ValueLayout.JAVA_BYTE, 5);
        return switch (kind) {
            case 0 -> new Alive();
            case 1 -> announced(from, number, KvDigest.CRC32C, most);
            case 3 -> new Taken(number);
            case 4 -> announced(from, number, KvDigest.SUM61, most);
            default -> throw new PipeException("a frame is of unknown kind " + kind);
        };
    }

    private static Announced announced(MemorySegment from, long number, KvDigest digest, long most)
            throws PipeException {
        int code = Byte.toUnsignedInt(from.get(ValueLayout.JAVA_BYTE, 6));
        int dimensions = Byte.toUnsignedInt(from.get(ValueLayout.JAVA_BYTE, 7));
        long bytes = from.get(Format.LONG, 16);
        if (code >= Format.TYPES.size()) {
            throw new PipeException("a tensor has unknown type " + code);
        }
        if (dimensions > Tensor.MAX_DIMENSIONS) {
            throw new PipeException(
                    "a tensor has %d dimensions, at most %d".formatted(dimensions, Tensor.MAX_DIMENSIONS));
        }
        Tensor.Type type = Format.TYPES.get(code);
        List<Long> shape = new ArrayList<>();
        for (int i = 0; i < dimensions; i++) {
            shape.add(from.get(Format.LONG, 24 + 8L * i));
        }
        try {
            if (Tensor.bytes(type, shape) != bytes) {
                throw new PipeException("a tensor of %s%s announces %d bytes, has %d"
                        .formatted(type.torchName(), shape, bytes, Tensor.bytes(type, shape)));
            }
        } catch (IllegalArgumentException e) {
            throw new PipeException("a tensor cannot be: " + e.getMessage(), e);
        }
        if (bytes > most) {
            throw new PipeException("a tensor of %s%s has %d bytes, at most %d are taken"
                    .formatted(type.torchName(), shape, bytes, most));
        }
        return new Announced(number, type, shape, bytes, digest, from.get(Format.INT, 88));
    }

    /** The encoding of numbers. */
    final class Format {
        static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT_UNALIGNED.withOrder(ByteOrder.BIG_ENDIAN);
        static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG_UNALIGNED.withOrder(ByteOrder.BIG_ENDIAN);
        /** A type's code is its index. */
        static final List<Tensor.Type> TYPES = List.of(
                Tensor.Type.BF16,
                Tensor.Type.F16,
                Tensor.Type.F32,
                Tensor.Type.I64,
                Tensor.Type.U8,
                Tensor.Type.BOOL,
                Tensor.Type.F8_E4M3);

        private Format() {}
    }
}
