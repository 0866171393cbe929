package baton.store.lm;

import io.netty.buffer.ByteBuf;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** The keys of a batch, as they are sent. Any thread may write them. */
interface LmKeys {
    int size();

    /** The beginning of all keys. */
    byte[] prefix();

    /** The end of all keys; no byte of it is in {@link #prefix} too. */
    byte[] suffix();

    /** Whether the parts between the two are hashes, as of {@link LmWire#HASHES}. */
    boolean areHashes();

    /**
     * Writes the parts between the two, of keys that follow each other: hashes, or texts with their number of bytes before each as a byte.
     */
    void writeRests(ByteBuf to, int from, int until);

    /** Writes a key, padded to {@link LmClient#MOST_KEY_BYTES}. */
    void write(ByteBuf to, int key);

    /** @throws IllegalArgumentException if a key cannot be sent, see {@link LmClient#requireKey} */
    static LmKeys of(List<String> texts) {
        byte[][] keys = new byte[texts.size()][];
        for (int i = 0; i < keys.length; i++) {
            LmClient.requireKey(texts.get(i));
            keys[i] = texts.get(i).getBytes(StandardCharsets.UTF_8);
        }
        return new LmKeys() {
            @Override
            public int size() {
                return keys.length;
            }

            @Override
            public byte[] prefix() {
                return new byte[0];
            }

            @Override
            public byte[] suffix() {
                return new byte[0];
            }

            @Override
            public boolean areHashes() {
                return false;
            }

            @Override
            public void writeRests(ByteBuf to, int from, int until) {
                for (int key = from; key < until; key++) {
                    to.writeByte(keys[key].length);
                    to.writeBytes(keys[key]);
                }
            }

            @Override
            public void write(ByteBuf to, int key) {
                LmWire.writeKey(to, keys[key]);
            }
        };
    }
}
