package baton.engine.core;

import baton.engine.EngineListener.PromptTokens;
import baton.engine.EngineListener.RequestStats;
import baton.engine.FinishReason;
import baton.engine.RequestTimes;
import baton.engine.SamplingParams;
import baton.engine.sampling.Sampler;
import baton.engine.sampling.SequenceSampler;
import baton.grammar.automaton.TokenGrammar;
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
        /** In the queue; holds no blocks. */
        WAITING,
        /** In the queue; a load is filling its blocks. */
        WAITING_FOR_REMOTE_KVS,
        /** Computed in every step that has room for it. */
        RUNNING,
        /** Ended; a transfer may still use its blocks. */
        FINISHED
    }

    private final String id;
    private final SamplingParams sampling;
    private final Optional<TokenGrammar> format;
    private final int outputStart;
    private final int promptLength;
    private final int maxLength;
    private final Optional<JsonFields> kvTransferParams;
    private final Optional<String> cacheSalt;
    private final int priority;
    private final double cacheHitThreshold;
    private final boolean first;
    private final long seed;
    private final RequestListener listener;
    private final long arrivalNanos;
    private final boolean warmsUp;

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
    /** Tokens whose KV is in {@link #blocks}. */
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
    /** Loaded tokens have not been compared with those of the model, and are to be: none of them is shared before. */
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
    /** Prompt tokens whose log probabilities were reported; survives preemption. */
    int promptLogprobsReported;

    long firstScheduledNanos;
    long firstTokenNanos;
    long lastTokenNanos;

    private Request(Builder builder) {
        this.id = builder.id;
        this.sampling = builder.sampling;
        this.format = builder.format;
        this.outputStart = builder.prompt.length;
        this.promptLength = outputStart + builder.generated.length;
        this.maxLength = builder.maxLength;
        this.kvTransferParams = builder.kvTransferParams;
        this.cacheSalt = builder.cacheSalt;
        this.priority = builder.priority;
        this.cacheHitThreshold = builder.cacheHitThreshold;
        this.first = builder.first;
        this.seed = builder.seed;
        this.hasher = builder.hasher;
        this.listener = builder.listener;
        this.arrivalNanos = builder.arrivalNanos;
        this.warmsUp = builder.warmsUp;
        this.tokens = Arrays.copyOf(builder.prompt, Math.min(maxLength, promptLength + 64));
        System.arraycopy(builder.generated, 0, tokens, outputStart, builder.generated.length);
        this.length = promptLength;
    }

    /**
     * @param prompt token ids
     * @param maxLength tokens that prompt and output may have together
     * @param hasher makes the block hashes, on the core's thread
     */
    public static Builder builder(
            String id,
            int[] prompt,
            int maxLength,
            SamplingParams sampling,
            BlockHasher hasher,
            RequestListener listener) {
        return new Builder(id, prompt, maxLength, sampling, hasher, listener);
    }

    /** A request's options beside its prompt and sampling. */
    public static final class Builder {
        private final String id;
        private final int[] prompt;
        private final int maxLength;
        private final SamplingParams sampling;
        private final BlockHasher hasher;
        private final RequestListener listener;
        private int[] generated = {};
        private Optional<TokenGrammar> format = Optional.empty();
        private Optional<JsonFields> kvTransferParams = Optional.empty();
        private Optional<String> cacheSalt = Optional.empty();
        private int priority;
        private double cacheHitThreshold;
        private boolean first;
        private long seed;
        private long arrivalNanos;
        private boolean warmsUp;

        private Builder(
                String id,
                int[] prompt,
                int maxLength,
                SamplingParams sampling,
                BlockHasher hasher,
                RequestListener listener) {
            this.id = id;
            this.prompt = prompt;
            this.maxLength = maxLength;
            this.sampling = sampling;
            this.hasher = hasher;
            this.listener = listener;
        }

        /** Output that another instance has generated. */
        public Builder generated(int[] value) {
            generated = value;
            return this;
        }

        /** The format of the output, compiled. */
        public Builder format(Optional<TokenGrammar> value) {
            format = value;
            return this;
        }

        public Builder kvTransferParams(Optional<JsonFields> value) {
            kvTransferParams = value;
            return this;
        }

        public Builder cacheSalt(Optional<String> value) {
            cacheSalt = value;
            return this;
        }

        /** Lower values are served first under {@code --scheduling-policy priority}. */
        public Builder priority(int value) {
            priority = value;
            return this;
        }

        /** Share of its tokens that caches must hold. */
        public Builder cacheHitThreshold(double value) {
            cacheHitThreshold = value;
            return this;
        }

        /** Whether it is served before requests without this. */
        public Builder first(boolean value) {
            first = value;
            return this;
        }

        /** Seed of the sampling. */
        public Builder seed(long value) {
            seed = value;
            return this;
        }

        /** Time of arrival on the core's ticker. */
        public Builder arrivalNanos(long value) {
            arrivalNanos = value;
            return this;
        }

        /** Whether the request is only computed: its blocks are not published in the prefix cache and the connector is not notified. */
        public Builder warmsUp(boolean value) {
            warmsUp = value;
            return this;
        }

        public Request build() {
            return new Request(this);
        }
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
                            ? hasher.first(tokens, cacheSalt)
                            : hasher.next(hashes.getLast(), tokens, hashes.size() * blockSize));
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

    /** Whether it is the engine's request of that id, or one of its samples. */
    boolean isOf(String requestId) {
        return id.equals(requestId)
                || (sampling.n() > 1 && id.lastIndexOf('-') == requestId.length() && id.startsWith(requestId));
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
        sequenceSampler = sampler.sequence(sampling, format, tokens(0, outputStart), seed);
    }

    RequestListener listener() {
        return listener;
    }

    int priority() {
        return priority;
    }

    boolean isFirst() {
        return first;
    }

    long arrivalNanos() {
        return arrivalNanos;
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
        return known < cacheHitThreshold * length;
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
