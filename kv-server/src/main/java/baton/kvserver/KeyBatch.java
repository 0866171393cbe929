package baton.kvserver;

import baton.store.lm.LmClient;
import baton.store.lm.LmMetadata;
import baton.store.lm.LmWire;
import io.netty.buffer.ByteBuf;
import java.util.Optional;

/** A {@link LmWire#BATCH_EXIST}: keys are looked up as they come. One thread uses it. */
final class KeyBatch {
    private final Cache cache;
    private final boolean ofHashes;
    private final Optional<Scope> scope;
    private final byte[] key = new byte[LmClient.MOST_KEY_BYTES];
    private final byte[] suffix;
    private final int prefixBytes;
    private final int keys;
    private final byte[] bits;

    private int done;
    private int bytesLeft;

    private KeyBatch(Cache cache, byte[] ends, LmMetadata sizes, int length) {
        this.cache = cache;
        keys = sizes.shape0();
        prefixBytes = sizes.shape1();
        ofHashes = sizes.shape3() == LmWire.HASHES;
        scope = ofHashes ? cache.known(scope(ends, sizes)) : Optional.empty();
        suffix = new byte[ends.length - prefixBytes];
        System.arraycopy(ends, 0, key, 0, prefixBytes);
        System.arraycopy(ends, prefixBytes, suffix, 0, suffix.length);
        bits = new byte[Math.ceilDiv(keys, Byte.SIZE)];
        bytesLeft = length;
    }

    private static Scope scope(byte[] ends, LmMetadata sizes) {
        return Scope.of(ends, sizes.shape1(), sizes.shape1(), ends.length);
    }

    /**
     * Begins one.
     *
     * @param ends the beginning of all keys, then their end
     * @param sizes with the numbers of the request
     * @param length of the bytes to come
     * @return empty if it cannot be one
     */
    static Optional<KeyBatch> begin(Cache cache, byte[] ends, LmMetadata sizes, int length) {
        int keys = sizes.shape0();
        boolean fits = keys >= 1
                && keys <= LmWire.MOST_BATCH
                && sizes.shape1() >= 0
                && sizes.shape2() >= 0
                && sizes.shape1() + (long) sizes.shape2() == ends.length
                && length >= keys
                && length <= keys * (1L + LmClient.MOST_KEY_BYTES);
        boolean understood = fits
                && switch (sizes.shape3()) {
                    case 0 -> true;
                    case LmWire.HASHES ->
                        length == keys * Scope.HASH_BYTES && scope(ends, sizes).isValid();
                    default -> false;
                };
        return understood ? Optional.of(new KeyBatch(cache, ends, sizes, length)) : Optional.empty();
    }

    int keysDone() {
        return done;
    }

    boolean isDone() {
        return done == keys;
    }

    int bytesLeft() {
        return bytesLeft;
    }

    /** A bit for each key that is there. */
    byte[] bits() {
        return bits;
    }

    /**
     * Looks keys up that have come.
     *
     * @return how many of them are there; negative if the bytes are no batch
     */
    int take(ByteBuf from) {
        int hits = ofHashes ? hashes(from) : texts(from);
        return isDone() && bytesLeft != 0 ? -1 : hits;
    }

    private int hashes(ByteBuf from) {
        int come = Math.min(keys - done, from.readableBytes() / Scope.HASH_BYTES);
        bytesLeft -= come * Scope.HASH_BYTES;
        int at = from.readerIndex();
        from.skipBytes(come * Scope.HASH_BYTES);
        if (scope.isEmpty()) {
            done += come;
            return 0;
        }
        // All at once: a buffer checks its bounds and its life with each number.
        long[] words = new long[come * Scope.HASH_WORDS];
        from.nioBuffer(at, come * Scope.HASH_BYTES).asLongBuffer().get(words);
        int hits = cache.contains(scope.get(), words, come, bits, done);
        done += come;
        return hits;
    }

    private int texts(ByteBuf from) {
        int hits = 0;
        synchronized (cache) {
            while (done < keys && from.isReadable()) {
                int bytes = from.getUnsignedByte(from.readerIndex());
                int whole = prefixBytes + bytes + suffix.length;
                if (whole > key.length || whole == 0 || 1 + bytes > bytesLeft) {
                    return -1;
                }
                if (from.readableBytes() < 1 + bytes) {
                    break;
                }
                from.skipBytes(1);
                from.readBytes(key, prefixBytes, bytes);
                System.arraycopy(suffix, 0, key, prefixBytes + bytes, suffix.length);
                bytesLeft -= 1 + bytes;
                if (cache.contains(key, whole)) {
                    hit();
                    hits++;
                }
                done++;
            }
        }
        return hits;
    }

    private void hit() {
        bits[done >>> 3] |= (byte) (1 << (done & 7));
    }
}
