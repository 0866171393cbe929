package baton.engine.core;

import baton.engine.EngineListener.RequestStats;
import baton.engine.FinishReason;
import baton.engine.SamplingParams;
import baton.engine.sampling.Sampler;
import baton.engine.sampling.SequenceSampler;
import baton.kv.BlockHash;
import baton.kv.BlockHasher;
import baton.kv.JsonFields;
import baton.kv.connector.HiddenState;
import baton.kv.connector.KvRequest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/** One sequence in the engine. Owned by the core's thread. */
public final class Request implements KvRequest {
    /** Where a request is in its life. */
    enum State {
        /** In the queue; holds no blocks. */
        WAITING,
        /** In the queue; its blocks are being filled from elsewhere. */
        WAITING_FOR_REMOTE_KVS,
        /** Computed in every step that has room for it. */
        RUNNING,
        /** Over; its blocks may still be in use by a transfer. */
        FINISHED
    }

    private final String id;
    private final SamplingParams sampling;
    private final int promptLength;
    private final int maxLength;
    private final Optional<JsonFields> kvTransferParams;
    private final Optional<String> cacheSalt;
    private final int priority;
    private final long seed;
    private final RequestListener listener;
    private final long arrivalNanos;
    private final boolean warmsUp;

    private @Nullable SequenceSampler sequenceSampler;
    private int[] tokens;
    private int length;
    private final BlockHasher hasher;
    private final BlockHash hashRoot;
    private final List<BlockHash> hashes = new ArrayList<>();

    final BlockTable blocks = new BlockTable();
    State state = State.WAITING;
    /** Order of arrival, for first come first served. */
    long sequence;
    /** The request waits until this block, which another is computing, is there to share. */
    @Nullable
    BlockHash deferredUntil;
    /** Tokens whose KV is in {@link #blocks}. */
    int computedTokens;
    /** Blocks published in the pool, a prefix of {@link #blocks}. */
    int publishedBlocks;
    /** After a failed load the connector is not asked again. */
    boolean connectorDone;
    /** The connector was told that the request ended; its report that loading or sending is over is still to come. */
    boolean awaitsReceived;

    boolean awaitsSent;
    /** Of the prompt's last token, which like all others was computed elsewhere: the first token is to be sampled from it. */
    @Nullable
    HiddenState hidden;
    /** Tokens that the first scheduling found here, and elsewhere. */
    int localHit;

    int externalHit;
    boolean everScheduled;
    /** Prompt tokens whose log probabilities were reported; survives preemption. */
    int promptLogprobsReported;

    long firstScheduledNanos;
    long firstTokenNanos;
    long lastTokenNanos;

    /** A request of a client. */
    public Request(
            String id,
            int[] prompt,
            SamplingParams sampling,
            int maxLength,
            Optional<JsonFields> kvTransferParams,
            Optional<String> cacheSalt,
            int priority,
            long seed,
            BlockHasher hasher,
            RequestListener listener,
            long arrivalNanos) {
        this(
                id,
                prompt,
                sampling,
                maxLength,
                kvTransferParams,
                cacheSalt,
                priority,
                seed,
                hasher,
                listener,
                arrivalNanos,
                false);
    }

    /**
     * @param prompt token ids
     * @param maxLength tokens that prompt and output may have together
     * @param seed of the sampling
     * @param hasher makes the block hashes, on the core's thread
     * @param warmsUp the request is only computed: its blocks are not published in the prefix cache and the connector is not told
     */
    public Request(
            String id,
            int[] prompt,
            SamplingParams sampling,
            int maxLength,
            Optional<JsonFields> kvTransferParams,
            Optional<String> cacheSalt,
            int priority,
            long seed,
            BlockHasher hasher,
            RequestListener listener,
            long arrivalNanos,
            boolean warmsUp) {
        this.id = id;
        this.sampling = sampling;
        this.promptLength = prompt.length;
        this.maxLength = maxLength;
        this.kvTransferParams = kvTransferParams;
        this.cacheSalt = cacheSalt;
        this.priority = priority;
        this.seed = seed;
        this.hasher = hasher;
        this.hashRoot = hasher.root(Optional.empty(), cacheSalt);
        this.listener = listener;
        this.arrivalNanos = arrivalNanos;
        this.warmsUp = warmsUp;
        this.tokens = Arrays.copyOf(prompt, Math.min(maxLength, prompt.length + 64));
        this.length = prompt.length;
    }

    @Override
    public String id() {
        return id;
    }

    @Override
    public int promptLength() {
        return promptLength;
    }

    @Override
    public int length() {
        return length;
    }

    @Override
    public int[] tokens(int from, int to) {
        if (to > length) {
            throw new IndexOutOfBoundsException("to=" + to + " length=" + length);
        }
        return Arrays.copyOfRange(tokens, from, to);
    }

    @Override
    public List<BlockHash> blockHashes() {
        int blockSize = hasher.blockSize();
        while ((hashes.size() + 1) * blockSize <= length) {
            BlockHash parent = hashes.isEmpty() ? hashRoot : hashes.getLast();
            hashes.add(hasher.next(parent, tokens, hashes.size() * blockSize));
        }
        return Collections.unmodifiableList(hashes);
    }

    @Override
    public Optional<JsonFields> kvTransferParams() {
        return kvTransferParams;
    }

    @Override
    public Optional<String> cacheSalt() {
        return cacheSalt;
    }

    @Override
    public Optional<String> loraId() {
        return Optional.empty();
    }

    @Override
    public boolean mayLoad() {
        return !wantsPromptLogprobs();
    }

    /** Samples of a prompt are called by its id, a hyphen, and their number from 0 on. */
    @Override
    public Optional<String> firstSample() {
        if (sampling.n() == 1) {
            return Optional.empty();
        }
        return Optional.of(id.substring(0, id.lastIndexOf('-') + 1) + 0).filter(first -> !first.equals(id));
    }

    SamplingParams sampling() {
        return sampling;
    }

    boolean warmsUp() {
        return warmsUp;
    }

    /** Makes this sequence's choices; there from the moment the request is added. */
    SequenceSampler sampler() {
        return Objects.requireNonNull(sequenceSampler, "request was not added");
    }

    void sampleWith(Sampler sampler) {
        sequenceSampler = sampler.sequence(sampling, tokens(0, promptLength), seed);
    }

    RequestListener listener() {
        return listener;
    }

    int priority() {
        return priority;
    }

    long arrivalNanos() {
        return arrivalNanos;
    }

    int outputLength() {
        return length - promptLength;
    }

    boolean wantsPromptLogprobs() {
        return sampling.promptLogprobs().isPresent();
    }

    /** True if computing the tokens from {@code start} on leads to log probabilities of the prompt that are still wanted. */
    boolean lacksPromptLogprobs(int start) {
        return wantsPromptLogprobs() && start < promptLength && promptLogprobsReported < promptLength - 1;
    }

    /** Ends a request that was never added to a core. */
    public void refuse(String why) {
        listener.onFinished(
                FinishReason.ERROR,
                Optional.empty(),
                new RequestStats(FinishReason.ERROR, promptLength, 0, maxTokens(), 0, 0, 0, 0, 0, 0, 0),
                Optional.empty(),
                Optional.of(why));
    }

    void append(int token) {
        if (length == tokens.length) {
            tokens = Arrays.copyOf(tokens, Math.min(maxLength, length * 2));
        }
        tokens[length++] = token;
    }

    /** Tokens that the output may have. */
    int maxTokens() {
        return Math.min(sampling.maxTokens().orElse(Integer.MAX_VALUE), maxLength - promptLength);
    }

    /** True if no further token may be added. */
    boolean isFull() {
        return outputLength() >= maxTokens();
    }

    /** True if the token that was just added ends the output. */
    boolean stopsAt(int token, Set<Integer> eosTokens) {
        if (outputLength() < sampling.minTokens()) {
            return false;
        }
        return (!sampling.ignoreEos() && eosTokens.contains(token))
                || sampling.stopTokenIds().contains(token);
    }

    @Override
    public String toString() {
        return "request " + id + " (" + state + ", tokens=" + length + ", computed=" + computedTokens + ")";
    }
}
