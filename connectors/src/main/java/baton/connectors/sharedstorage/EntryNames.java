package baton.connectors.sharedstorage;

import baton.kv.connector.KvRequest;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.List;
import java.util.NavigableSet;
import java.util.Optional;
import java.util.TreeSet;

/**
 * Names of entries. As in vLLM's ExampleConnector a name is the hexadecimal MD5 of the token ids, each as a little-endian
 * int64, of the prompt's aligned prefix.
 *
 * <p>vLLM ignores LoRA adapters and {@code cache_salt}, so that requests that must not share KV do. Here, for a request with
 * either, the ids are followed by {@code baton:lora:<bytes>:<id>} and {@code baton:salt:<bytes>:<salt>} (those that are
 * present, in this order, UTF-8, {@code <bytes>} being the decimal length of the next part). The first eight bytes of this text
 * are no token id, as the int64 of one ends in four zero bytes, so no other prompt has the same input.
 */
final class EntryNames {
    /** Prefixes looked for, at most: with more, the longest half and the shortest half of these. */
    static final int MAX_CANDIDATES = 1024;

    private EntryNames() {}

    /** The tokens that an entry for a prompt holds: all full blocks before its last token, which is always computed. */
    static int aligned(int promptLength, int blockSize) {
        return Math.max(0, promptLength - 1) / blockSize * blockSize;
    }

    /** The name of the entry that holds the first {@code tokens} tokens. */
    static String of(KvRequest request, int tokens) {
        return names(request, new TreeSet<>(List.of(tokens))).getFirst().name;
    }

    /** The names of the entries that hold more than {@code above} and up to {@code aligned} tokens, longest first. */
    static List<Candidate> candidates(KvRequest request, int above, int aligned, int blockSize) {
        NavigableSet<Integer> lengths = new TreeSet<>();
        int shortest = (above / blockSize + 1) * blockSize;
        for (int length = aligned; length >= shortest && lengths.size() < MAX_CANDIDATES / 2; length -= blockSize) {
            lengths.add(length);
        }
        for (int length = shortest; length <= aligned && lengths.size() < MAX_CANDIDATES; length += blockSize) {
            lengths.add(length);
        }
        return names(request, lengths).reversed();
    }

    private static List<Candidate> names(KvRequest request, NavigableSet<Integer> lengths) {
        if (lengths.isEmpty()) {
            return List.of();
        }
        int[] tokens = request.tokens(0, lengths.last());
        MessageDigest md5 = md5();
        byte[] suffix = suffix(request);
        byte[] id = new byte[Long.BYTES];
        int[] hashed = {0};
        return lengths.stream()
                .map(length -> {
                    for (; hashed[0] < length; hashed[0]++) {
                        int token = tokens[hashed[0]];
                        id[0] = (byte) token;
                        id[1] = (byte) (token >>> 8);
                        id[2] = (byte) (token >>> 16);
                        id[3] = (byte) (token >>> 24);
                        md5.update(id);
                    }
                    MessageDigest copy = copy(md5);
                    return new Candidate(HexFormat.of().formatHex(copy.digest(suffix)), length);
                })
                .toList();
    }

    private static byte[] suffix(KvRequest request) {
        return (field("baton:lora", request.loraId()) + field("baton:salt", request.cacheSalt()))
                .getBytes(StandardCharsets.UTF_8);
    }

    private static String field(String name, Optional<String> value) {
        return value.map(text -> name + ":" + text.getBytes(StandardCharsets.UTF_8).length + ":" + text)
                .orElse("");
    }

    private static MessageDigest md5() {
        try {
            return MessageDigest.getInstance("MD5");
        } catch (NoSuchAlgorithmException e) {
            throw new AssertionError("every Java platform has MD5", e);
        }
    }

    private static MessageDigest copy(MessageDigest digest) {
        try {
            return (MessageDigest) digest.clone();
        } catch (CloneNotSupportedException e) {
            throw new AssertionError("the platform's MD5 can be copied", e);
        }
    }

    record Candidate(String name, int tokens) {}
}
