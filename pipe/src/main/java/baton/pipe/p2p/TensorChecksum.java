package baton.pipe.p2p;

import baton.kv.KvCopier;
import baton.kv.KvCopier.Range;
import baton.kv.KvCopier.Runs;
import baton.kv.KvDigest;
import baton.kv.KvFence;
import baton.memory.Crc32c;
import baton.messages.p2p.P2pMessage.Checksum;
import baton.messages.p2p.P2pMessage.Origin;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.pipe.TensorBytes;
import baton.pipe.p2p.P2pException.Fault;
import baton.pipe.p2p.P2pStats.Count;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import java.util.zip.CRC32C;

/** The checksum of a tensor, its id and its head: {@link Checksum}. */
final class TensorChecksum {
    private TensorChecksum() {}

    /** A device computes it where the bytes are. */
    static Checksum of(String tensorId, TensorHead head, TensorBytes bytes) {
        KvDigest kind = bytes instanceof TensorBytes.Device ? KvDigest.SUM61 : KvDigest.CRC32C;
        return new Checksum(kind, of(kind, tensorId, head, bytes));
    }

    private static int of(KvDigest kind, String tensorId, TensorHead head, TensorBytes bytes) {
        String text = String.join(
                "\n",
                tensorId,
                head.dtype(),
                head.shape().stream().map(String::valueOf).collect(Collectors.joining(",")),
                head.origin()
                        .map(each -> String.valueOf(each.tensorParallelSize()))
                        .orElse(""),
                head.origin().map(Origin::digest).orElse(""),
                "");
        CRC32C crc = new CRC32C();
        crc.update(text.getBytes(StandardCharsets.UTF_8));
        if (kind == KvDigest.SUM61) {
            long[] sums = sums(bytes);
            ByteBuffer numbers = ByteBuffer.allocate(Long.BYTES * sums.length);
            numbers.asLongBuffer().put(sums);
            crc.update(numbers);
            return (int) crc.getValue();
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
        return (int) crc.getValue();
    }

    /** {@link KvDigest#SUM61} of each piece of {@link Checksum#PIECE} bytes. */
    private static long[] sums(TensorBytes bytes) {
        List<TensorBytes> pieces = new ArrayList<>();
        for (long at = 0; at < bytes.byteSize(); at += Checksum.PIECE) {
            pieces.add(bytes.slice(at, Math.min(Checksum.PIECE, bytes.byteSize() - at)));
        }
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
                List<Runs> runs = new ArrayList<>();
                for (int i = 0; i < sums.length; i++) {
                    runs.add(new Runs(
                            device.offset() + i * Checksum.PIECE,
                            0,
                            1,
                            pieces.get(i).byteSize()));
                }
                device.pool()
                        .copier()
                        .digest(KvDigest.SUM61, runs, sums, KvFence.PASSED)
                        .await();
                yield sums;
            }
        };
    }

    /**
     * Checks a received tensor. One without a checksum is counted and passes.
     *
     * @throws P2pException if the checksum is another one
     */
    static void check(String tensorId, TensorHead head, TensorBytes bytes, P2pStats stats) throws P2pException {
        if (head.checksum().isEmpty()) {
            stats.add(Count.UNCHECKED_TENSORS, 1);
            return;
        }
        Checksum announced = head.checksum().get();
        int actual = of(announced.kind(), tensorId, head, bytes);
        if (actual != announced.value()) {
            stats.add(Count.CORRUPT, 1);
            throw new P2pException(
                    Fault.CORRUPT,
                    "%s, or its announcement, was damaged on its way: the checksum is %08x, must be %08x"
                            .formatted(tensorId, actual, announced.value()));
        }
    }
}
