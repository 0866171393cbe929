package baton.store.redis;

import baton.kv.BlockHash;
import io.netty.buffer.ByteBuf;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** The keys of a batch, as they are sent. Any thread may write them. */
interface KeyList {
    int size();

    /** Bytes of a key as an argument, about. */
    int bytes();

    /** Writes a key as an argument. */
    void write(ByteBuf to, int key);

    static KeyList of(Keys keys, List<BlockHash> batch) {
        List<BlockHash> copy = List.copyOf(batch);
        return new KeyList() {
            @Override
            public int size() {
                return copy.size();
            }

            @Override
            public int bytes() {
                return keys.bytes();
            }

            @Override
            public void write(ByteBuf to, int key) {
                keys.write(to, copy.get(key));
            }
        };
    }

    static KeyList of(List<String> batch) {
        List<byte[]> texts = batch.stream()
                .map(text -> text.getBytes(StandardCharsets.UTF_8))
                .toList();
        int longest = texts.stream().mapToInt(text -> text.length).max().orElse(0);
        return new KeyList() {
            @Override
            public int size() {
                return texts.size();
            }

            @Override
            public int bytes() {
                return longest + 16;
            }

            @Override
            public void write(ByteBuf to, int key) {
                Keys.argument(to, texts.get(key));
            }
        };
    }
}
