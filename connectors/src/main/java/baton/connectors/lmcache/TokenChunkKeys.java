package baton.connectors.lmcache;

import baton.connectors.bykey.ChunkKeys;
import baton.kv.BlockHash;
import baton.kv.BlockHasher;
import baton.kv.ChunkHashing;
import baton.kv.HashAlgorithm;
import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.kv.connector.KvRequest;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.store.lmcache.CacheEngineKeys;
import baton.store.lmcache.CacheEngineKeys.Tag;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Chunks by LMCache's hash of their tokens and by the request's tags. Neither a cache salt nor a LoRA adapter is in that hash, so requests that
 * have one use no store.
 */
final class TokenChunkKeys implements ChunkKeys {
    private static final String SKIP_SAVE = "lmcache.skip_save";
    private static final String TAG = "lmcache.tag.";

    private final int chunkSize;
    private final ChunkHashing hashing;
    private final CacheEngineKeys names;
    private final Use use;

    /** A second hash of the same tokens, as LMCache's 64 bits may collide. */
    private final BlockHasher strong;

    private final Map<String, Chain> chains = new HashMap<>();

    /**
     * The instance's use of the store.
     *
     * @param leastLoad tokens
     */
    record Use(boolean loads, boolean stores, int leastLoad) {}

    private static final class Chain {
        final boolean isShared;
        final boolean isStored;
        final long tags;
        final List<BlockHash> keys = new ArrayList<>();
        long last;
        Optional<BlockHash> lastStrong = Optional.empty();

        Chain(boolean isShared, boolean isStored, long tags, long first) {
            this.isShared = isShared;
            this.isStored = isStored;
            this.tags = tags;
            this.last = first;
        }
    }

    /** @param chunkSize in tokens */
    TokenChunkKeys(int chunkSize, ChunkHashing hashing, CacheEngineKeys names, Use use) {
        this.chunkSize = chunkSize;
        this.hashing = hashing;
        this.names = names;
        this.use = use;
        this.strong = new BlockHasher(HashAlgorithm.SHA256_CBOR, "lmcache", chunkSize);
    }

    @Override
    public void begin(KvRequest request) {
        List<Tag> tags = new ArrayList<>();
        boolean skipSave = false;
        Optional<JsonFields> params = request.kvTransferParams();
        if (params.isPresent()) {
            skipSave = params.get().bool(SKIP_SAVE).orElse(false);
            ObjectNode json = params.get().toJson();
            // In their order, which is part of the key.
            for (String name : json.propertyNames()) {
                if (name.startsWith(TAG)) {
                    tags.add(tag(params.get(), name, json.get(name)));
                }
            }
        }
        boolean shared = request.cacheSalt().filter(salt -> !salt.isEmpty()).isEmpty()
                && request.loraId().isEmpty();
        chains.put(request.id(), new Chain(shared, !skipSave, names.digest(tags), hashing.first()));
    }

    private static Tag tag(JsonFields params, String name, JsonNode value) {
        String text = value.isString() || value.isIntegralNumber() ? value.asString() : "";
        String tag = name.substring(TAG.length());
        if (text.isEmpty() || !isPlain(text)) {
            throw new InvalidFieldException(
                    params.field(name), "is " + value + ", must be a text without blanks and @, or a whole number");
        }
        if (tag.isEmpty() || !isPlain(tag) || tag.contains("%")) {
            throw new InvalidFieldException(params.field(name), "is not a name of a tag: must have no blanks, @ and %");
        }
        return new Tag(tag, text);
    }

    private static boolean isPlain(String text) {
        return text.chars().allMatch(c -> c > ' ' && c < 127 && c != '@');
    }

    private Chain chain(KvRequest request) {
        Chain chain = chains.get(request.id());
        if (chain == null) {
            throw new IllegalStateException("request " + request.id() + " has not begun");
        }
        return chain;
    }

    @Override
    public List<BlockHash> keys(KvRequest request, int from, int to) {
        Chain chain = chain(request);
        int known = chain.keys.size();
        if (known < to) {
            int[] tokens = request.tokens(known * chunkSize, to * chunkSize);
            for (int at = 0; at < tokens.length; at += chunkSize) {
                int[] chunk = tokens;
                int start = at;
                chain.last = hashing.next(chain.last, tokens, at, chunkSize);
                BlockHash hash = chain.lastStrong
                        .map(parent -> strong.next(parent, chunk, start))
                        .orElseGet(() -> strong.first(chunk, Optional.empty()));
                chain.lastStrong = Optional.of(hash);
                chain.keys.add(new BlockHash(chain.last, chain.tags, hash.a(), hash.b()));
            }
        }
        return List.copyOf(chain.keys.subList(from, to));
    }

    @Override
    public boolean loads(KvRequest request) {
        return use.loads && chain(request).isShared;
    }

    @Override
    public boolean stores(KvRequest request) {
        Chain chain = chain(request);
        return use.stores && chain.isShared && chain.isStored;
    }

    @Override
    public int leastLoad() {
        return use.leastLoad;
    }

    @Override
    public Optional<JsonFields> forget(KvRequest request, RequestEnd end) {
        chains.remove(request.id());
        return Optional.empty();
    }
}
