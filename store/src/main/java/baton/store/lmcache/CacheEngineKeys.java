package baton.store.lmcache;

import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.Sha256;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.nio.ByteBuffer;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * LMCache's keys (lmcache/utils.py:CacheEngineKey): {@code <model>@<world size>@<worker>@<chunk hash>@<dtype>}, and for each tag
 * {@code @<name>%<value>}. The chunk hash is hexadecimal without leading zeros, with a sign if it is negative.
 *
 * <p>The key in memory, a {@link BlockHash}, is: the chunk hash; a digest of the tags, 0 without any; and 128 bits of a stronger hash of the
 * tokens. Tags are kept by their digest, the last ones used. Thread-safe.
 */
public final class CacheEngineKeys implements ObjectNames {
    private static final int MOST_TAGS = 1 << 16;

    private final String start;
    private final String end;
    private final boolean signed;

    /** The keys by digest, in the order of their last use. */
    @GuardedBy("this")
    private final Map<Long, String> tags = new LinkedHashMap<>(16, 0.75f, true) {
        @Override
        protected boolean removeEldestEntry(Map.Entry<Long, String> eldest) {
            return size() > MOST_TAGS;
        }
    };

    /**
     * @param worldSize ranks
     * @param signed whether chunk hashes are Python's {@code hash()}, which has a sign
     */
    public CacheEngineKeys(String model, int worldSize, DType dtype, boolean signed) {
        this.start = model + "@" + worldSize + "@";
        this.end = "@" + ObjectMetadata.name(dtype);
        this.signed = signed;
    }

    /** A tag of a request: {@code lmcache.tag.<name>}. */
    public record Tag(String name, String value) {}

    /** The digest that stands for tags in keys; 0 for none. The tags are kept. */
    public long digest(List<Tag> of) {
        if (of.isEmpty()) {
            return 0;
        }
        StringBuilder text = new StringBuilder();
        for (Tag tag : of) {
            text.append('@').append(tag.name()).append('%').append(tag.value());
        }
        long digest = ByteBuffer.wrap(Sha256.of(text.toString())).getLong();
        synchronized (this) {
            tags.put(digest, text.toString());
        }
        return digest;
    }

    @Override
    public Optional<String> name(BlockHash key, int worker) {
        String tagged = "";
        if (key.b() != 0) {
            synchronized (this) {
                tagged = tags.getOrDefault(key.b(), "");
            }
            if (tagged.isEmpty()) {
                return Optional.empty();
            }
        }
        return Optional.of(start + worker + "@" + hex(key.a()) + end + tagged);
    }

    private String hex(long hash) {
        return signed ? Long.toString(hash, 16) : Long.toHexString(hash);
    }
}
