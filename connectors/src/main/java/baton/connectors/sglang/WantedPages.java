package baton.connectors.sglang;

import baton.kv.InvalidFieldException;
import baton.messages.PeerAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.util.List;

/**
 * A decode rank's message about one request: where a prefill rank is to write its pages. SGLang's {@code TransferInfo}, 10 frames. Or its
 * wish that nothing more is written, {@code AbortNotification}, up to 5 frames.
 *
 * @param room of the request
 * @param from where status messages go
 * @param session of the decode rank's Mooncake engine
 * @param pages of the prompt from {@code prefix} tokens on
 * @param row beside them
 * @param ranks decode ranks that want pages of this request from the same prefill rank
 * @param prefix tokens that the decode instance has
 */
record WantedPages(long room, PeerAddress from, String session, int[] pages, int row, int ranks, int prefix) {
    static final String ABORT = "ABORT";
    private static final String WHAT = "TransferInfo";

    List<byte[]> encode() {
        ByteBuffer indices = ByteBuffer.allocate(pages.length * Integer.BYTES).order(ByteOrder.LITTLE_ENDIAN);
        indices.asIntBuffer().put(pages);
        return List.of(
                DecodeRank.ascii(room),
                DecodeRank.ascii(from.host()),
                DecodeRank.ascii(from.port()),
                DecodeRank.ascii(session),
                indices.array(),
                DecodeRank.ascii(row),
                new byte[0],
                DecodeRank.ascii(ranks),
                DecodeRank.ascii(prefix),
                new byte[0]);
    }

    /** @throws InvalidFieldException if the frames are no such message, or are those of a dummy rank, which needs no pages */
    static WantedPages decode(List<byte[]> frames) {
        if (frames.size() < 8) {
            throw new InvalidFieldException(WHAT, "has " + frames.size() + " frames, must have at least 8");
        }
        if (frames.get(4).length % Integer.BYTES != 0) {
            throw new InvalidFieldException(WHAT, "has page indices that are no whole numbers");
        }
        IntBuffer indices =
                ByteBuffer.wrap(frames.get(4)).order(ByteOrder.LITTLE_ENDIAN).asIntBuffer();
        int[] pages = new int[indices.remaining()];
        indices.get(pages);
        for (int page : pages) {
            if (page < 0) {
                throw new InvalidFieldException(WHAT, "has the page index " + page);
            }
        }
        boolean hasPrefix = frames.size() > 8 && frames.get(8).length > 0;
        return new WantedPages(
                DecodeRank.number(frames, 0, Long.MAX_VALUE),
                address(frames, 1),
                DecodeRank.text(frames, 3),
                pages,
                (int) DecodeRank.number(frames, 5, Integer.MAX_VALUE),
                (int) DecodeRank.number(frames, 7, Integer.MAX_VALUE),
                hasPrefix ? (int) DecodeRank.number(frames, 8, Integer.MAX_VALUE) : 0);
    }

    /** The address in two frames. */
    static PeerAddress address(List<byte[]> frames, int frame) {
        String host = DecodeRank.text(frames, frame);
        return PeerAddress.find(host, DecodeRank.number(frames, frame + 1, 65_535))
                .orElseThrow(() -> new InvalidFieldException(
                        "frame " + frame,
                        "is '" + PeerAddress.shown(host) + "', must be a host with a port behind it"));
    }
}
