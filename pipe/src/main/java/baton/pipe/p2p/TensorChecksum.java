package baton.pipe.p2p;

import baton.memory.Crc32c;
import baton.messages.p2p.P2pMessage.Origin;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.pipe.p2p.P2pException.Fault;
import baton.pipe.p2p.P2pStats.Count;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.stream.Collectors;
import java.util.zip.CRC32C;

/** The checksum of a tensor, its id and its head: {@link TensorHead#checksum}. */
final class TensorChecksum {
    private TensorChecksum() {}

    static int of(String tensorId, TensorHead head, MemorySegment bytes) {
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
        Crc32c.update(crc, bytes);
        return (int) crc.getValue();
    }

    /**
     * Checks a received tensor. One without a checksum is counted and passes.
     *
     * @throws P2pException if the checksum is another one
     */
    static void check(String tensorId, TensorHead head, MemorySegment bytes, P2pStats stats) throws P2pException {
        if (head.checksum().isEmpty()) {
            stats.add(Count.UNCHECKED_TENSORS, 1);
            return;
        }
        int announced = head.checksum().get();
        int actual = of(tensorId, head, bytes);
        if (actual != announced) {
            stats.add(Count.CORRUPT, 1);
            throw new P2pException(
                    Fault.CORRUPT,
                    "%s, or its announcement, was damaged on its way: the checksum is %08x, must be %08x"
                            .formatted(tensorId, actual, announced));
        }
    }
}
