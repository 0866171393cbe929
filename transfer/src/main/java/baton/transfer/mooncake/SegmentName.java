package baton.transfer.mooncake;

import baton.transfer.TransferException;
import java.nio.charset.StandardCharsets;

/** The name of a segment, which is an agent's metadata. */
final class SegmentName {
    /** Characters. */
    static final int LONGEST = 512;

    private SegmentName() {}

    /** @throws TransferException if the bytes are no name */
    static String of(byte[] metadata) throws TransferException {
        String text = metadata.length > LONGEST ? "" : new String(metadata, StandardCharsets.US_ASCII);
        if (text.isEmpty() || text.chars().anyMatch(each -> each <= ' ' || each >= 0x7f)) {
            throw new TransferException("metadata of %d bytes are not the name of a Mooncake segment, such as host:port"
                    .formatted(metadata.length));
        }
        return text;
    }
}
