package baton.server;

import io.vertx.core.http.HttpServerRequest;
import io.vertx.core.net.HostAndPort;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Deque;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * How often the beginnings of prompts came, in blocks of {@value #BLOCK} tokens, so that other instances can take the hottest ones over
 * before this one ends. The last used ones stay; older uses count half after each {@value #HALVING} prompts. Confined to the event loop.
 */
final class HotPrefixes {
    static final String PATH = "/v1/hot_prefixes";

    static final int BLOCK = 16;
    private static final int MOST_BLOCKS = 1 << 16;
    private static final int HALVING = 4096;
    /** Characters; prompts with longer salts are not counted. */
    private static final int LONGEST_SALT = 128;

    /**
     * Blocks with the same parent differ by their tokens.
     *
     * @param parent 0 of the first block
     * @param salt of the first block, empty if there is none
     */
    private record Key(long parent, String salt, int[] tokens) {
        @Override
        public boolean equals(Object other) {
            return other instanceof Key(long otherParent, String otherSalt, int[] otherTokens)
                    && parent == otherParent
                    && salt.equals(otherSalt)
                    && Arrays.equals(tokens, otherTokens);
        }

        @Override
        public int hashCode() {
            return (Long.hashCode(parent) * 31 + salt.hashCode()) * 31 + Arrays.hashCode(tokens);
        }
    }

    private static final class Block {
        private final Key key;
        private final long id;
        private final Optional<Block> parent;
        /** Blocks from the first one to this one. */
        private final int depth;

        private int uses;

        Block(Key key, long id, Optional<Block> parent) {
            this.key = key;
            this.id = id;
            this.parent = parent;
            this.depth = parent.map(block -> block.depth).orElse(0) + 1;
        }
    }

    /** @param uses of its last block */
    record Prefix(int[] tokens, Optional<String> salt, int uses) {}

    private final boolean hasKey;
    private final int most;

    /** The least recently used comes first, and children come before their parents. */
    private final LinkedHashMap<Key, Block> blocks = new LinkedHashMap<>(16, 0.75f, true);

    private long ids;
    private int prompts;

    /** @param hasKey whether only clients with an API key can ask */
    HotPrefixes(boolean hasKey) {
        this(hasKey, MOST_BLOCKS);
    }

    /** @param most blocks that are remembered, in about 200 bytes each */
    HotPrefixes(boolean hasKey, int most) {
        this.hasKey = hasKey;
        this.most = most;
    }

    /** A request came, maybe one of the warm-up, which does not count. */
    void used(HttpExchange exchange, ApiRequest request) {
        if (!exchange.warmsUp() && request.cacheSalt().orElse("").length() <= LONGEST_SALT) {
            request.prompts().forEach(prompt -> used(prompt.ids(), request.cacheSalt()));
        }
    }

    /** A prompt came. */
    void used(int[] prompt, Optional<String> salt) {
        Deque<Block> path = new ArrayDeque<>();
        int whole = Math.min(prompt.length / BLOCK, most);
        for (int i = 0; i < whole; i++) {
            Optional<Block> parent = Optional.ofNullable(path.peekFirst());
            Key key = new Key(
                    parent.map(block -> block.id).orElse(0L),
                    parent.isPresent() ? "" : salt.orElse(""),
                    Arrays.copyOfRange(prompt, i * BLOCK, (i + 1) * BLOCK));
            Block block = blocks.computeIfAbsent(key, _ -> new Block(key, ++ids, parent));
            block.uses++;
            path.addFirst(block);
        }
        // The parents last: they must not be forgotten before their children.
        path.forEach(block -> blocks.get(block.key));
        Iterator<Block> oldest = blocks.values().iterator();
        while (blocks.size() > most) {
            oldest.next();
            oldest.remove();
        }
        if (++prompts % HALVING == 0) {
            blocks.values().forEach(block -> block.uses /= 2);
        }
    }

    /**
     * The longest prefixes of the most used blocks, those of the most used first; of blocks that were used as often the last ones.
     *
     * @param tokens of all prefixes, and of the blocks that are looked at, at most
     */
    List<Prefix> hottest(int tokens) {
        List<Block> byUse = new ArrayList<>(blocks.values()).reversed();
        byUse.sort(Comparator.comparingInt((Block block) -> block.uses).reversed());
        List<Block> chosen = byUse.subList(0, Math.min(byUse.size(), tokens / BLOCK));
        Set<Block> inner = new HashSet<>();
        chosen.forEach(block -> block.parent.ifPresent(inner::add));
        List<Prefix> hottest = new ArrayList<>();
        int left = tokens;
        for (Block block : chosen) {
            if (!inner.contains(block) && block.depth * BLOCK <= left) {
                hottest.add(prefix(block));
                left -= block.depth * BLOCK;
            }
        }
        return hottest;
    }

    private static Prefix prefix(Block last) {
        Deque<Block> path = new ArrayDeque<>();
        for (Optional<Block> block = Optional.of(last); block.isPresent(); block = block.get().parent) {
            path.addFirst(block.get());
        }
        int[] tokens = path.stream()
                .flatMapToInt(block -> Arrays.stream(block.key.tokens))
                .toArray();
        String salt = path.getFirst().key.salt;
        return new Prefix(tokens, Optional.of(salt).filter(each -> !each.isEmpty()), last.uses);
    }

    /**
     * Whether a client is on this host and calls the server by an address of it: a page in a browser of this host may have any name.
     *
     * @param host of the request's authority
     */
    static boolean isOfThisHost(String clientAddress, String host) {
        return clientAddress.matches("127\\..*|::1|0:0:0:0:0:0:0:1")
                && host.matches("localhost|127\\.[0-9.]+|\\[?::1]?");
    }

    /**
     * Answers {@code GET /v1/hot_prefixes?tokens=N}: {@code prefixes}, each with {@code token_ids}, {@code cache_salt} and {@code uses}.
     *
     * @throws ApiException with status 403 if anybody on the network could read the prompts
     */
    void answer(HttpExchange exchange) {
        HttpServerRequest request = exchange.request();
        HostAndPort named = request.authority();
        if (!hasKey && !isOfThisHost(request.remoteAddress().hostAddress(), named == null ? "" : named.host())) {
            throw ApiException.forbidden(
                    "prompts are sent to this host only, as the server has no --api-key that others would need");
        }
        String given = Optional.ofNullable(request.getParam("tokens")).orElse("");
        if (!given.matches("[1-9][0-9]{0,6}")) {
            throw ApiException.badField("tokens", "is '" + Json.shortened(given) + "', must be 1 to 9999999");
        }
        exchange.json(200, new Json().document(out -> {
                    out.writeStartObject();
                    out.writeName("prefixes");
                    out.writeStartArray();
                    for (Prefix prefix : hottest(Integer.parseInt(given))) {
                        out.writeStartObject();
                        out.writeName("token_ids");
                        out.writeArray(prefix.tokens, 0, prefix.tokens.length);
                        out.writeName("cache_salt");
                        prefix.salt.ifPresentOrElse(out::writeString, out::writeNull);
                        out.writeNumberProperty("uses", prefix.uses);
                        out.writeEndObject();
                    }
                    out.writeEndArray();
                    out.writeEndObject();
                }));
    }
}
