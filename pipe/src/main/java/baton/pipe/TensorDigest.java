package baton.pipe;

import baton.kv.KvCopier;
import baton.kv.KvCopier.Range;
import baton.kv.KvCopier.Runs;
import baton.kv.KvDigest;
import baton.kv.KvFence;
import baton.memory.Crc32c;
import baton.messages.p2p.P2pMessage.Checksum;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.stream.IntStream;
import java.util.zip.CRC32C;

/** The part of a {@link Checksum} that a tensor's bytes add. */
public final class TensorDigest {
    private TensorDigest() {}

    /** The kind of bytes that are sent: a device computes SUM61 where they are. */
    public static KvDigest kind(TensorBytes bytes) {
        return bytes instanceof TensorBytes.Device ? KvDigest.SUM61 : KvDigest.CRC32C;
    }

    static int of(KvDigest kind, TensorBytes bytes) {
        CRC32C crc = new CRC32C();
        update(crc, kind, bytes);
        return (int) crc.getValue();
    }

    /** Adds the bytes, or the SUM61 of their pieces. */
    public static void update(CRC32C crc, KvDigest kind, TensorBytes bytes) {
        if (kind == KvDigest.SUM61) {
            long[] sums = sums(bytes);
            ByteBuffer numbers = ByteBuffer.allocate(Long.BYTES * sums.length);
            numbers.asLongBuffer().put(sums);
            crc.update(numbers);
            return;
        }
        switch (bytes) {
            case TensorBytes.Host(MemorySegment host) -> Crc32c.update(crc, host);
            case TensorBytes.Device device -> {
                try (Arena arena = Arena.ofShared()) {
                    MemorySegment copy = arena.allocate(Math.min(KvCopier.DIGESTED_AT_ONCE, device.byteSize()));
                    for (long at = 0; at < device.byteSize(); at += copy.byteSize()) {
                        MemorySegment piece = copy.asSlice(0, Math.min(copy.byteSize(), device.byteSize() - at));
                        List<Range> range = List.of(new Range(device.offset() + at, 0, piece.byteSize()));
                        device.pool()
                                .copier()
                                .toHost(range, piece, KvFence.PASSED)
                                .await();
                        Crc32c.update(crc, piece);
                    }
                }
            }
        }
    }

    /** {@link KvDigest#SUM61} of each piece of {@link Checksum#PIECE} bytes. */
    private static long[] sums(TensorBytes bytes) {
        List<TensorBytes> pieces = bytes.pieces(Checksum.PIECE);
        return switch (bytes) {
            case TensorBytes.Host _ ->
                pieces.stream()
                        .mapToLong(piece -> {
                            KvDigest.Running sum = KvDigest.SUM61.begin();
                            sum.add(piece.host().asByteBuffer());
                            return sum.value();
                        })
                        .toArray();
            case TensorBytes.Device device -> {
                long[] sums = new long[pieces.size()];
                List<Runs> runs = IntStream.range(0, sums.length)
                        .mapToObj(i -> new Runs(
                                device.offset() + i * Checksum.PIECE,
                                0,
                                1,
                                pieces.get(i).byteSize()))
                        .toList();
                device.pool()
                        .copier()
                        .digest(KvDigest.SUM61, runs, sums, KvFence.PASSED)
                        .await();
                yield sums;
            }
        };
    }
}
