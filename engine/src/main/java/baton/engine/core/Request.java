package baton.engine.core;

import baton.engine.EngineListener.PromptTokens;
import baton.engine.EngineListener.RequestStats;
import baton.engine.FinishReason;
import baton.engine.RequestTimes;
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
    /** The states of a request's life. */
    enum State {
        /** The request is in the queue and holds no blocks. */
        WAITING,
        /** The request is in the queue; a load is filling its blocks. */
        WAITING_FOR_REMOTE_KVS,
        /** Computed in every step that has room for it. */
        RUNNING,
        /** Ended; a transfer may still use its blocks. */
        FINISHED
    }

    private final String id;
    private final SamplingParams sampling;
    private final int outputStart;
    private final int promptLength;
    private final int maxLength;
    private final RequestListener listener;
    private final SequenceOptions options;

    private @Nullable SequenceSampler sequenceSampler;
    private int[] tokens;
    private int length;
    private final BlockHasher hasher;
    private final List<BlockHash> hashes = new ArrayList<>();

    BlockTable blocks = new BlockTable(1);
    State state = State.WAITING;
    /** Order of arrival, for first come first served. */
    long sequence;
    /** The request waits until this block, which another request is computing, can be shared. */
    @Nullable
    BlockHash deferredUntil;
    /** Tokens with KV in {@link #blocks}. */
    int computedTokens;
    /** Blocks published in the pool, a prefix of {@link #blocks}. */
    int publishedBlocks;
    /** After a failed load the connector is not asked again. */
    boolean connectorDone;
    /** Hidden state of the prompt's last token, if the whole prompt was computed elsewhere: the first token is sampled from it. */
    @Nullable
    HiddenState hidden;
    /** Its load is from a peer that nothing has been loaded from. */
    boolean fromUnreachedPeer;
    /** Tokens that a load which is not over brings; 0 if there is none. */
    int loadingTokens;
    /** Position of the first token that the connector loads, or has loaded, and of the one after the last; the same if it loads none. */
    int loadedFrom;

    int loadedTo;
    /** Whether loaded tokens are yet to be compared with the model's: none of them is shared before. */
    boolean unverified;
    /** Tokens that the first scheduling found in the prefix cache. */
    int localHit;
    /** Tokens that the first scheduling found through the connector. */
    int externalHit;

    /** The connector's load. */
    final LoadRecord load = new LoadRecord();

    /** Times that its blocks went to other requests. */
    int preemptions;

    boolean everScheduled;
    /** Prompt tokens with reported log probabilities; survives preemption. */
    int promptLogprobsReported;

    long firstScheduledNanos;
    long firstTokenNanos;
    long lastTokenNanos;

    /**
     * @param prompt token ids
     * @param maxLength tokens that prompt and output may have together
     * @param hasher makes the block hashes, on the core's thread
     */
    public Request(
            String id,
            int[] prompt,
            int maxLength,
            SamplingParams sampling,
            BlockHasher hasher,
            RequestListener listener,
            SequenceOptions options) {
        this.id = id;
        this.sampling = sampling;
        this.outputStart = prompt.length;
        this.promptLength = outputStart + options.generated().length;
        this.maxLength = maxLength;
        this.hasher = hasher;
        this.listener = listener;
        this.options = options;
        this.tokens = Arrays.copyOf(prompt, Math.min(maxLength, promptLength + 64));
        System.arraycopy(options.generated(), 0, tokens, outputStart, promptLength - outputStart);
        this.length = promptLength;
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
            hashes.add(
                    hashes.isEmpty()
                            ? hasher.first(tokens, options.cacheSalt())
                            : hasher.next(hashes.getLast(), tokens, hashes.size() * blockSize));
        }
        return Collections.unmodifiableList(hashes);
    }

    @Override
    public Optional<JsonFields> kvTransferParams() {
        return options.kvTransferParams();
    }

    @Override
    public Optional<String> cacheSalt() {
        return options.cacheSalt();
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

    /** Whether it is the engine's request of that id, or one of its samples. */
    boolean isOf(String requestId) {
        return id.equals(requestId)
                || (sampling.n() > 1 && id.lastIndexOf('-') == requestId.length() && id.startsWith(requestId));
    }

    SamplingParams sampling() {
        return sampling;
    }

    boolean warmsUp() {
        return options.warmsUp();
    }

    /** Makes this sequence's choices; there from the moment the request is added. */
    SequenceSampler sampler() {
        return Objects.requireNonNull(sequenceSampler, "request was not added");
    }

    void sampleWith(Sampler sampler) {
        sequenceSampler = sampler.sequence(sampling, options.format(), tokens(0, outputStart), options.seed());
    }

    RequestListener listener() {
        return listener;
    }

    int priority() {
        return options.priority();
    }

    boolean isFirst() {
        return options.first();
    }

    long arrivalNanos() {
        return options.arrivalNanos();
    }

    /** Tokens of the request's own prompt, without output that another instance has generated. */
    int outputStart() {
        return outputStart;
    }

    int outputLength() {
        return length - outputStart;
    }

    /** Tokens of the output that another instance has generated. */
    int replayed() {
        return promptLength - outputStart;
    }

    /** Whether caches that hold so many of its tokens hold less than the request requires. */
    boolean missesCacheThreshold(int known) {
        return known < options.cacheHitThreshold() * length;
    }

    boolean wantsPromptLogprobs() {
        return sampling.promptLogprobs().isPresent();
    }

    /** True if computing the tokens from {@code start} on leads to log probabilities of the prompt that are still wanted. */
    boolean lacksPromptLogprobs(int start) {
        return wantsPromptLogprobs() && start < outputStart && promptLogprobsReported < outputStart - 1;
    }

    /** Ends a request that was never added to a core. */
    public void refuse(String why) {
        listener.onFinished(
                FinishReason.ERROR,
                Optional.empty(),
                new RequestStats(
                        id,
                        FinishReason.ERROR,
                        outputStart,
                        0,
                        0,
                        maxTokens(),
                        PromptTokens.NONE,
                        0,
                        0,
                        0,
                        0,
                        RequestTimes.NONE),
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
        return Math.min(sampling.maxTokens().orElse(Integer.MAX_VALUE), maxLength - outputStart);
    }

    /** True if the token ends the output, which has so many tokens with it. */
    boolean stopsAt(int token, int outputLength, Set<Integer> eosTokens) {
        if (outputLength < sampling.minTokens()) {
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
