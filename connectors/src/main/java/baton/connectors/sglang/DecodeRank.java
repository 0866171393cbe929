package baton.connectors.sglang;

import baton.kv.InvalidFieldException;
import baton.messages.PeerAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;

/**
 * A decode rank registers with a prefill rank, once for a connection: SGLang's {@code KVArgsRegisterInfo}, 20 frames that begin
 * with {@code None} (sglang/srt/disaggregation/mooncake/conn.py). Frames of states, staging and context parallelism are empty.
 *
 * @param session {@code host:port} of its Mooncake engine
 * @param kvBuffers addresses: keys of all layers, then values of all layers
 * @param rowBuffers addresses of the buffers of data beside keys and values
 * @param itemBytes of a page in each buffer
 * @param isBaton has one frame more, and buffers as {@link SglangPages} has them
 */
record DecodeRank(
        String session, long[] kvBuffers, long[] rowBuffers, int tpRank, int tpSize, long itemBytes, boolean isBaton) {
    static final String REGISTRATION = "None";
    private static final String WHAT = "KVArgsRegisterInfo";
    private static final String BATON = "baton";
    private static final int FRAMES = 20;
    private static final int DCP_SIZE = 16;
    private static final int MOST_RANKS = 65_535;
    private static final int MOST_BUFFERS = 1024;

    /** @param own where status messages go */
    List<byte[]> encode(PeerAddress own) {
        byte[][] frames = new byte[FRAMES + 1][];
        Arrays.fill(frames, new byte[0]);
        frames[0] = ascii(REGISTRATION);
        frames[1] = ascii(own.host());
        frames[2] = ascii(own.port());
        frames[3] = ascii(session);
        frames[4] = numbers(kvBuffers);
        frames[5] = numbers(rowBuffers);
        frames[7] = ascii(tpRank);
        frames[8] = ascii(tpSize);
        frames[9] = ascii(itemBytes);
        frames[DCP_SIZE] = ascii(1);
        frames[DCP_SIZE + 1] = ascii(0);
        long[] items = new long[kvBuffers.length];
        Arrays.fill(items, itemBytes);
        frames[FRAMES - 1] = numbers(items);
        frames[FRAMES] = ascii(BATON);
        return List.of(frames);
    }

    /** @throws InvalidFieldException if the frames are no registration that a prefill rank can write to */
    static DecodeRank decode(List<byte[]> frames) {
        if (frames.size() < 10) {
            throw new InvalidFieldException(WHAT, "has " + frames.size() + " frames, must have at least 10");
        }
        if (frames.size() > DCP_SIZE && frames.get(DCP_SIZE).length > 0 && number(frames, DCP_SIZE, MOST_RANKS) > 1) {
            throw new InvalidFieldException(
                    WHAT, "is of a rank with decode context parallelism, which is not supported");
        }
        String session = text(frames, 3);
        if (PeerAddress.find(session).isEmpty()) {
            throw new InvalidFieldException(
                    WHAT, "has the session '" + PeerAddress.shown(session) + "', must be host:port");
        }
        return new DecodeRank(
                session,
                numbers(frames, 4),
                numbers(frames, 5),
                (int) number(frames, 7, MOST_RANKS),
                (int) number(frames, 8, MOST_RANKS),
                number(frames, 9, Long.MAX_VALUE),
                frames.size() > FRAMES && text(frames, FRAMES).equals(BATON));
    }

    static byte[] ascii(String text) {
        return text.getBytes(StandardCharsets.ISO_8859_1);
    }

    static byte[] ascii(long number) {
        return ascii(Long.toString(number));
    }

    static String text(List<byte[]> frames, int frame) {
        return new String(frames.get(frame), StandardCharsets.ISO_8859_1);
    }

    /** A decimal number from 0. */
    static long number(List<byte[]> frames, int frame, long most) {
        String text = text(frames, frame);
        try {
            long number = Long.parseLong(text);
            if (number >= 0 && number <= most) {
                return number;
            }
        } catch (NumberFormatException e) {
            // Reported below.
        }
        throw new InvalidFieldException(
                "frame " + frame, "is '" + PeerAddress.shown(text) + "', must be a number from 0 to " + most);
    }

    private static byte[] numbers(long[] numbers) {
        ByteBuffer bytes = ByteBuffer.allocate(numbers.length * Long.BYTES).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asLongBuffer().put(numbers);
        return bytes.array();
    }

    private static long[] numbers(List<byte[]> frames, int frame) {
        byte[] bytes = frames.get(frame);
        if (bytes.length % Long.BYTES != 0 || bytes.length > MOST_BUFFERS * Long.BYTES) {
            throw new InvalidFieldException(
                    "frame " + frame,
                    "has " + bytes.length + " bytes, must be at most " + MOST_BUFFERS + " whole addresses");
        }
        LongBuffer numbers =
                ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asLongBuffer();
        long[] read = new long[numbers.remaining()];
        numbers.get(read);
        return read;
    }
}
