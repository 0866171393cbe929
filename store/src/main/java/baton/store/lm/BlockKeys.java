package baton.store.lm;

import baton.kv.BlockHash;
import baton.store.remote.HexDigits;
import io.netty.buffer.ByteBuf;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** Keys of blocks, of LMCache's form {@code model@world_size@worker@hash@dtype}. */
final class BlockKeys implements LmKeys {
    private static final byte[] SUFFIX = "@uint8".getBytes(StandardCharsets.US_ASCII);
    private static final int HASH_WORDS = 4;

    private final byte[] prefix;
    private final List<BlockHash> keys;

    BlockKeys(byte[] prefix, List<BlockHash> keys) {
        this.prefix = prefix;
        this.keys = List.copyOf(keys);
    }

    /** @param format names the format */
    static byte[] prefix(String format) {
        return ("btkv:" + format + "@1@0@").getBytes(StandardCharsets.US_ASCII);
    }

    @Override
    public int size() {
        return keys.size();
    }

    @Override
    public byte[] prefix() {
        return prefix;
    }

    @Override
    public byte[] suffix() {
        return SUFFIX;
    }

    @Override
    public boolean areHashes() {
        return true;
    }

    @Override
    public void writeRests(ByteBuf to, int from, int until) {
        long[] words = new long[(until - from) * HASH_WORDS];
        for (int key = from, at = 0; key < until; key++, at += HASH_WORDS) {
            BlockHash hash = keys.get(key);
            words[at] = hash.a();
            words[at + 1] = hash.b();
            words[at + 2] = hash.c();
            words[at + 3] = hash.d();
        }
        int bytes = words.length * Long.BYTES;
        to.ensureWritable(bytes);
        // All at once: a buffer checks its bounds and its life with each number.
        to.nioBuffer(to.writerIndex(), bytes).asLongBuffer().put(words);
        to.writerIndex(to.writerIndex() + bytes);
    }

    @Override
    public void write(ByteBuf to, int key) {
        to.writeBytes(prefix);
        HexDigits.write(to, keys.get(key));
        to.writeBytes(SUFFIX);
        LmWire.pad(to, LmClient.MOST_KEY_BYTES - prefix.length - HexDigits.OF_HASH - SUFFIX.length);
    }
}
