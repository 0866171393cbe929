package baton.pipe.p2p;

import baton.kv.KvDigest;
import baton.messages.p2p.P2pMessage.Checksum;
import baton.messages.p2p.P2pMessage.Origin;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.pipe.TensorBytes;
import baton.pipe.TensorDigest;
import baton.pipe.p2p.P2pException.Fault;
import baton.pipe.p2p.P2pStats.Count;
import java.nio.charset.StandardCharsets;
import java.util.stream.Collectors;
import java.util.zip.CRC32C;

/** The checksum of a tensor, its id and its head: {@link Checksum}. */
final class TensorChecksum {
    private TensorChecksum() {}

    static Checksum of(String tensorId, TensorHead head, TensorBytes bytes) {
        KvDigest kind = TensorDigest.kind(bytes);
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
        TensorDigest.update(crc, kind, bytes);
        return (int) crc.getValue();
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
