package baton.store.lm;

import io.netty.buffer.ByteBuf;

/**
 * A reply's numbers.
 *
 * @param length of the bytes that follow
 */
record LmReply(int code, int length, LmMetadata metadata) {
    /** Reads {@link LmWire#REPLY_BYTES}. */
    static LmReply read(ByteBuf from) {
        int code = from.readIntLE();
        int length = from.readIntLE();
        LmMetadata metadata = new LmMetadata(
                from.readIntLE(),
                from.readIntLE(),
                from.readIntLE(),
                from.readIntLE(),
                from.readIntLE(),
                from.readIntLE());
        from.skipBytes(Integer.BYTES);
        return new LmReply(code, length, metadata);
    }

    /** Whether it can be one: anything else means that the stream is not understood. */
    boolean isValid() {
        return (code == LmWire.SUCCESS || code == LmWire.FAIL)
                && length >= 0
                && (code == LmWire.SUCCESS || length == 0);
    }

    boolean isSuccess() {
        return code == LmWire.SUCCESS;
    }
}
