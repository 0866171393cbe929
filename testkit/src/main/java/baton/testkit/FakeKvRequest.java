package baton.testkit;

import baton.kv.BlockHash;
import baton.kv.BlockHasher;
import baton.kv.JsonFields;
import baton.kv.connector.KvRequest;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

/**
 * A request that is nothing but its tokens, all of them prompt.
 *
 * @param blockSize for {@link #blockHashes} of the model {@code fake}
 */
public record FakeKvRequest(
        String id,
        int[] prompt,
        int blockSize,
        Optional<JsonFields> kvTransferParams,
        Optional<String> cacheSalt,
        Optional<String> loraId,
        Optional<String> firstSample)
        implements KvRequest {

    public FakeKvRequest(String id, int[] prompt, int blockSize) {
        this(id, prompt, blockSize, Optional.empty(), Optional.empty(), Optional.empty(), Optional.empty());
    }

    /** The tokens {@code first, first + 1, ...}. */
    public static int[] counting(int first, int length) {
        return IntStream.range(first, first + length).toArray();
    }

    public FakeKvRequest withKvTransferParams(JsonFields params) {
        return new FakeKvRequest(id, prompt, blockSize, Optional.of(params), cacheSalt, loraId, firstSample);
    }

    public FakeKvRequest withCacheSalt(String salt) {
        return new FakeKvRequest(id, prompt, blockSize, kvTransferParams, Optional.of(salt), loraId, firstSample);
    }

    public FakeKvRequest withLora(String lora) {
        return new FakeKvRequest(id, prompt, blockSize, kvTransferParams, cacheSalt, Optional.of(lora), firstSample);
    }

    /** A further sample of a prompt. */
    public FakeKvRequest withFirstSample(String first) {
        return new FakeKvRequest(id, prompt, blockSize, kvTransferParams, cacheSalt, loraId, Optional.of(first));
    }

    @Override
    public int promptLength() {
        return prompt.length;
    }

    @Override
    public int length() {
        return prompt.length;
    }

    @Override
    public int[] tokens(int from, int to) {
        return Arrays.copyOfRange(prompt, from, to);
    }

    @Override
    public List<BlockHash> blockHashes() {
        return new BlockHasher(blockSize).chain(prompt, cacheSalt);
    }
}
