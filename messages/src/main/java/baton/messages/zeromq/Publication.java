package baton.messages.zeromq;

import java.nio.ByteBuffer;
import java.util.List;

/** A message with its number. */
record Publication(long sequence, byte[] topic, byte[] payload) {
    /** The frames that subscribers receive. */
    List<byte[]> frames() {
        return List.of(topic, eightBytes(sequence), payload);
    }

    /** Bytes that it is counted with against limits. */
    long weight() {
        // The objects around the bytes.
        return payload.length + 128L;
    }

    static byte[] eightBytes(long number) {
        return ByteBuffer.allocate(Long.BYTES).putLong(number).array();
    }
}
