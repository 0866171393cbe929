package baton.engine.model;

import baton.engine.kernel.Activation;
import baton.engine.model.ModelConfig.RopeScaling;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Stream;

/**
 * The computation of a decoder as data: {@link DecoderFamily} makes it of config.json, {@link DecoderRunner} carries it out. Every layer
 * is attention and a gated feed-forward layer or experts, each of which adds to the residual stream, with the norms that {@code tensors}
 * names.
 *
 * @param architecture the family's name in config.json
 * @param layers the attention of each layer, which may be computed when it is asked for
 * @param tensors for each part of a layer, the tensor that holds it, as its name in the checkpoint reads between {@code model.layers.N.}
 *     and {@code .weight}; {@code *} stands for the number of an expert. Parts in one tensor are its rows in the order of {@link Part}. A
 *     layer has the parts that are named, of its feed-forward part those of its kind
 * @param biased the parts with a bias beside the weight in the checkpoint; if these are norms, all norms have one
 * @param feedForward the kind of each layer's feed-forward part
 * @param onePlusNorms norms multiply by 1 plus their weights
 * @param latent of models with attention that caches latents
 */
public record Recipe(
        String architecture,
        List<LayerAttention> layers,
        Map<Part, String> tensors,
        Set<Part> biased,
        List<FeedForward> feedForward,
        Scales scales,
        boolean onePlusNorms,
        Caps caps,
        Optional<Latent> latent) {
    /** Names of tensors as most families have them, without norms. */
    static final Map<Part, String> USUAL_PRODUCTS = Map.of(
            Part.QUERIES, "self_attn.q_proj",
            Part.KEYS, "self_attn.k_proj",
            Part.VALUES, "self_attn.v_proj",
            Part.OUTPUT, "self_attn.o_proj",
            Part.GATE, "mlp.gate_proj",
            Part.UP, "mlp.up_proj",
            Part.DOWN, "mlp.down_proj");

    /** The usual tensors, with norms of inputs. */
    static final Map<Part, String> USUAL_TENSORS = with(
            USUAL_PRODUCTS,
            Map.of(Part.ATTENTION_NORM, "input_layernorm", Part.FEED_FORWARD_NORM, "post_attention_layernorm"));

    private static final FeedForward USUAL_FEED_FORWARD = new Dense(Activation.SILU);

    public Recipe {
        tensors = Map.copyOf(tensors);
        biased = Set.copyOf(biased);
    }

    /** Without latents. */
    public Recipe(
            String architecture,
            List<LayerAttention> layers,
            Map<Part, String> tensors,
            Set<Part> biased,
            List<FeedForward> feedForward,
            Scales scales,
            boolean onePlusNorms,
            Caps caps) {
        this(architecture, layers, tensors, biased, feedForward, scales, onePlusNorms, caps, Optional.empty());
    }

    /** A part of a layer, with weights of its own. */
    public enum Part {
        /** Norm of the input of attention. */
        ATTENTION_NORM,
        /** The projection of latent attention from the hidden state to the latent of the queries. */
        QUERY_LATENT,
        QUERY_LATENT_NORM,
        QUERIES,
        /** The projection of latent attention from the hidden state to the latent and the rotated part, which are cached. */
        ENTRY,
        /** Norm of the latent that is cached. */
        LATENT_NORM,
        /** The projection of latent attention from the latent to each head's key and value. */
        EXPANSION,
        KEYS,
        VALUES,
        /** Norm of each head of the queries before it is rotated. */
        QUERY_NORM,
        /** Norm of each head of the keys before it is rotated. */
        KEY_NORM,
        /** Norm of the queries of all heads together before they are rotated. */
        QUERIES_NORM,
        /** Norm of the keys of all heads together before they are rotated. */
        KEYS_NORM,
        /** The score, for each head of the queries, of a position without a value. */
        SINKS,
        OUTPUT,
        /** Norm of the result of attention. */
        AFTER_ATTENTION_NORM,
        /** Norm of the input of the feed-forward layer. */
        FEED_FORWARD_NORM,
        GATE,
        UP,
        DOWN,
        /** Chooses experts: a row for each of them. */
        ROUTER,
        /** A number for each expert, which is added to its share where experts are chosen. */
        ROUTER_CORRECTION,
        EXPERT_GATE,
        EXPERT_UP,
        EXPERT_DOWN,
        /** One row. Its product decides how much of the shared expert's result is added. */
        SHARED_ROUTER,
        SHARED_GATE,
        SHARED_UP,
        SHARED_DOWN,
        /** Norm of the result of the feed-forward layer. */
        AFTER_FEED_FORWARD_NORM;

        static final Set<Part> PROJECTIONS = Set.of(QUERIES, KEYS, VALUES);
        private static final Set<Part> OF_DENSE = Set.of(GATE, UP, DOWN);
        private static final Set<Part> OF_ROUTER = Set.of(ROUTER, ROUTER_CORRECTION);
        private static final Set<Part> OF_EACH_EXPERT = Set.of(EXPERT_GATE, EXPERT_UP, EXPERT_DOWN);
        private static final Set<Part> OF_SHARED_EXPERT = Set.of(SHARED_ROUTER, SHARED_GATE, SHARED_UP, SHARED_DOWN);

        /** Whether a layer with such a feed-forward part may have this part. */
        private boolean isOf(FeedForward feedForward) {
            return switch (feedForward) {
                case Dense _ ->
                    !OF_ROUTER.contains(this) && !OF_EACH_EXPERT.contains(this) && !OF_SHARED_EXPERT.contains(this);
                case Plain _ -> this != GATE && isOf(USUAL_FEED_FORWARD);
                case Experts experts ->
                    !OF_DENSE.contains(this) && (experts.sharedWidth() > 0 || !OF_SHARED_EXPERT.contains(this));
            };
        }

        /** Shape of the weight in a model, of one expert. */
        List<Long> shape(ModelConfig config) {
            long hidden = config.hiddenSize();
            long queries = (long) config.heads() * config.queryDim();
            long keys = (long) config.kvHeads() * config.headDim();
            long intermediate = config.intermediateSize();
            return switch (this) {
                case ATTENTION_NORM, AFTER_ATTENTION_NORM, FEED_FORWARD_NORM, AFTER_FEED_FORWARD_NORM ->
                    List.of(hidden);
                case QUERY_NORM, KEY_NORM -> List.of((long) config.headDim());
                case QUERIES_NORM -> List.of(queries);
                case KEYS_NORM -> List.of(keys);
                case QUERIES ->
                    List.of(
                            queries,
                            config.recipe().has(QUERY_LATENT) ? latent(config).queryRank() : hidden);
                case QUERY_LATENT -> List.of((long) latent(config).queryRank(), hidden);
                case QUERY_LATENT_NORM -> List.of((long) latent(config).queryRank());
                case ENTRY -> List.of((long) latent(config).entry(), hidden);
                case LATENT_NORM -> List.of((long) latent(config).rank());
                case EXPANSION ->
                    List.of((long) config.heads() * latent(config).expanded(), (long)
                            latent(config).rank());
                case SINKS -> List.of((long) config.heads());
                case KEYS, VALUES -> List.of(keys, hidden);
                case OUTPUT -> List.of(hidden, (long) config.heads() * config.valueDim());
                case GATE, UP -> List.of(intermediate, hidden);
                case DOWN -> List.of(hidden, intermediate);
                case ROUTER -> List.of((long) experts(config).count(), hidden);
                case ROUTER_CORRECTION -> List.of((long) experts(config).count());
                case EXPERT_GATE, EXPERT_UP -> List.of((long) experts(config).width(), hidden);
                case EXPERT_DOWN -> List.of(hidden, (long) experts(config).width());
                case SHARED_ROUTER -> List.of(1L, hidden);
                case SHARED_GATE, SHARED_UP -> List.of((long) experts(config).sharedWidth(), hidden);
                case SHARED_DOWN -> List.of(hidden, (long) experts(config).sharedWidth());
            };
        }

        private static Latent latent(ModelConfig config) {
            return config.recipe().latent().orElseThrow();
        }

        private static Experts experts(ModelConfig config) {
            return config.recipe().experts().orElseThrow();
        }
    }

    /**
     * Attention of one layer.
     *
     * @param rotation of queries and keys; empty: they have no positions
     */
    public record LayerAttention(Reach reach, Optional<Rotation> rotation) {
        LayerAttention(Reach reach, Rotation rotation) {
            this(reach, Optional.of(rotation));
        }
    }

    /**
     * Latent attention: a token has one latent for all heads, from which each head's key and value follow, and one key part that is rotated.
     * Neighbouring elements of the rotated parts of keys and queries are a pair.
     *
     * @param queryRank elements of the latent that queries are made of; 0: they are made of the hidden state
     * @param rank elements of the latent
     * @param plain elements of a head's key that are not rotated
     * @param rotated elements of the rotated part, the same for all heads
     * @param values elements of a head's value
     */
    public record Latent(int queryRank, int rank, int plain, int rotated, int values) {
        /** Elements that are cached of a token in a layer. */
        public int entry() {
            return rank + rotated;
        }

        /** Elements of a head's query. */
        public int query() {
            return plain + rotated;
        }

        /** Elements that a head has of a latent. */
        int expanded() {
            return plain + values;
        }
    }

    /** Which positions a token attends to, of those up to its own. */
    public sealed interface Reach {}

    /** All. */
    public record Everything() implements Reach {}

    /** The latest ones, as many, its own included. */
    public record Window(int positions) implements Reach {}

    /**
     * The rotary embedding.
     *
     * @param theta base of the frequencies
     * @param scaling how they are stretched for long contexts; empty: not at all
     * @param share of a head's elements that are rotated, which are the first ones
     * @param ofNeighbours whether pairs are interleaved (GPT-J style): elements 2i and 2i + 1; else elements i and i + half of those that are
     *     rotated
     */
    public record Rotation(double theta, Optional<RopeScaling> scaling, double share, boolean ofNeighbours) {
        /** The rotation of whole heads, with the usual pairs. */
        Rotation(double theta, Optional<RopeScaling> scaling) {
            this(theta, scaling, 1, false);
        }

        /** How many elements of a head are rotated. */
        int elements(int headDim) {
            return (int) (headDim * share);
        }

        boolean isUsual() {
            return share == 1 && !ofNeighbours;
        }

        /** Part of fingerprints. */
        @Override
        public String toString() {
            return "Rotation[theta=%s, scaling=%s%s]"
                    .formatted(
                            theta,
                            scaling,
                            isUsual() ? "" : ", share=%s, ofNeighbours=%s".formatted(share, ofNeighbours));
        }
    }

    /** Kinds of feed-forward layers. */
    public sealed interface FeedForward {}

    /** {@code down(activation(gate(x)) * up(x))}. */
    public record Dense(Activation activation) implements FeedForward {}

    /** {@code down(function(up(x)))}. */
    public record Plain(Function function) implements FeedForward {
        /** Functions of one element. */
        public enum Function {
            /** GeLU with its approximation by tanh. */
            GELU_TANH {
                @Override
                float of(float x) {
                    return (float) (x / (1 + Math.exp(-2 * ROOT * (x + 0.044715 * x * x * x))));
                }
            },
            /** {@code max(x, 0)^2}. */
            RELU_SQUARED {
                @Override
                float of(float x) {
                    float positive = Math.max(x, 0);
                    return positive * positive;
                }
            };

            private static final double ROOT = Math.sqrt(2 / Math.PI);

            abstract float of(float x);
        }
    }

    /**
     * A mixture of experts. A router gives each expert a share of every token, all shares together are 1. The experts with the largest
     * shares compute as {@link Dense} does, and their results are added, times their shares.
     *
     * @param count experts, the same in all layers that have some
     * @param chosen experts that compute a token
     * @param normalised the shares of the chosen experts are divided by their sum
     * @param width of an expert, in the whole model
     * @param sharedWidth of an expert that computes every token; its result is added, times the sigmoid of a product if the recipe has
     *     {@link Part#SHARED_ROUTER}; 0: there is none
     */
    public record Experts(
            int count,
            int chosen,
            boolean normalised,
            int width,
            int sharedWidth,
            Activation activation,
            Routing routing)
            implements FeedForward {
        /** Experts with {@link Routing#USUAL}. */
        public Experts(int count, int chosen, boolean normalised, int width, int sharedWidth, Activation activation) {
            this(count, chosen, normalised, width, sharedWidth, activation, Routing.USUAL);
        }
    }

    /**
     * How experts are chosen.
     *
     * @param independent an expert's share is the sigmoid of its product; else the shares are the softmax of all products
     * @param groups of experts with consecutive numbers
     * @param chosenGroups groups that a token's experts are chosen from: those with the largest sums
     * @param summed number of a group's largest shares that are its sum
     * @param factor of the shares of chosen experts
     */
    public record Routing(boolean independent, int groups, int chosenGroups, int summed, double factor) {
        static final Routing USUAL = new Routing(false, 1, 1, 1, 1);
    }

    /**
     * Factors.
     *
     * @param embedding of a token's embedding, rounded to the type that the model computes in
     * @param scores of the products of queries and keys; empty: one over the root of a head's elements
     * @param residual of the results that attention and the feed-forward layer add
     * @param logits of the products with the output projection
     */
    public record Scales(double embedding, Optional<Double> scores, double residual, double logits) {
        static final Scales NONE = new Scales(1, Optional.empty(), 1, 1);
    }

    /**
     * Bounds of numbers x: {@code cap * tanh(x / cap)}.
     *
     * @param scores of the scores of attention
     * @param logits of logits
     */
    public record Caps(Optional<Double> scores, Optional<Double> logits) {
        static final Caps NONE = new Caps(Optional.empty(), Optional.empty());
    }

    /** Llama without biases. */
    static Recipe llama(int layers, Rotation rotation) {
        return usual(
                "LlamaForCausalLM",
                Collections.nCopies(layers, new LayerAttention(new Everything(), rotation)),
                USUAL_TENSORS,
                Set.of());
    }

    /** A recipe with SiLU and no factors. */
    static Recipe usual(String architecture, List<LayerAttention> layers, Map<Part, String> tensors, Set<Part> biased) {
        return usual(architecture, layers, tensors, biased, Collections.nCopies(layers.size(), USUAL_FEED_FORWARD));
    }

    /** Without factors. */
    static Recipe usual(
            String architecture,
            List<LayerAttention> layers,
            Map<Part, String> tensors,
            Set<Part> biased,
            List<FeedForward> feedForward) {
        return new Recipe(architecture, layers, tensors, biased, feedForward, Scales.NONE, false, Caps.NONE);
    }

    /** Names of tensors, and more or others. */
    static Map<Part, String> with(Map<Part, String> tensors, Map<Part, String> more) {
        Map<Part, String> all = new EnumMap<>(tensors);
        all.putAll(more);
        return Map.copyOf(all);
    }

    boolean has(Part part) {
        return tensors.containsKey(part);
    }

    /** Norms with a bias subtract the mean from the elements before all else. */
    boolean centersNorms() {
        return biased.contains(Part.ATTENTION_NORM);
    }

    /** Whether a layer has a part. */
    private boolean has(Part part, int layer) {
        return has(part) && part.isOf(feedForward.get(layer));
    }

    /** The experts of the layers that have some. */
    public Optional<Experts> experts() {
        return feedForward.stream()
                .flatMap(each -> each instanceof Experts experts ? Stream.of(experts) : Stream.empty())
                .findFirst();
    }

    /**
     * The fingerprint's text of traits that differ from Llama's and do not show in the tensors' names and shapes; may be empty. A trait
     * must stay as it is written here, and one that no family has had until now must not change the text of the others.
     */
    String traits() {
        List<String> traits = new ArrayList<>();
        if (layers.stream().map(LayerAttention::rotation).distinct().count() > 1) {
            traits.add("rotations="
                    + layers.stream()
                            .map(layer -> layer.rotation().map(Object::toString).orElse("none"))
                            .toList());
        } else {
            rotations().stream()
                    .filter(rotation -> !rotation.isUsual())
                    .forEach(rotation -> traits.add("rotation=" + rotation));
        }
        feedForward.stream()
                .distinct()
                .filter(kind -> !kind.equals(USUAL_FEED_FORWARD))
                .forEach(kind -> traits.add(
                        switch (kind) {
                            case Dense dense -> "feed_forward=" + dense;
                            case Plain plain -> "feed_forward=" + plain;
                            case Experts experts ->
                                "experts_per_token=%d normalised=%s activation=%s%s"
                                        .formatted(
                                                experts.chosen(),
                                                experts.normalised(),
                                                experts.activation(),
                                                experts.routing().equals(Routing.USUAL)
                                                        ? ""
                                                        : " routing=" + experts.routing());
                        }));
        if (!scales.equals(Scales.NONE)) {
            traits.add("scales=" + scales);
        }
        if (onePlusNorms) {
            traits.add("norms=1+weight");
        }
        caps.scores().ifPresent(cap -> traits.add("score_cap=" + cap));
        caps.logits().ifPresent(cap -> traits.add("logit_cap=" + cap));
        latent.ifPresent(each -> traits.add("latent=" + each));
        return String.join(" ", traits);
    }

    /** The rotations of all layers, each once. */
    List<Rotation> rotations() {
        return layers.stream()
                .flatMap(layer -> layer.rotation().stream())
                .distinct()
                .toList();
    }

    /** The same of some of the layers. */
    Recipe ofLayers(Shard.Range range) {
        int end = range.first() + range.count();
        return new Recipe(
                architecture,
                List.copyOf(layers.subList(range.first(), end)),
                tensors,
                biased,
                List.copyOf(feedForward.subList(range.first(), end)),
                scales,
                onePlusNorms,
                caps,
                latent);
    }

    /** A layer's tensors in a model by name, as it reads behind {@code model.layers.N.}. */
    Map<String, List<Long>> shapes(int layer, ModelConfig config) {
        Map<String, List<Long>> shapes = new TreeMap<>();
        for (Part part : Part.values()) {
            if (has(part, layer)) {
                List<Long> shape = part.shape(config);
                int count = Part.OF_EACH_EXPERT.contains(part)
                        ? experts().orElseThrow().count()
                        : 1;
                for (int expert = 0; expert < count; expert++) {
                    shapes.merge(weight(part, expert), shape, Recipe::below);
                    if (biased.contains(part)) {
                        shapes.merge(bias(part, expert), shape.subList(0, 1), Recipe::below);
                    }
                }
            }
        }
        return shapes;
    }

    private static List<Long> below(List<Long> shape, List<Long> other) {
        List<Long> both = new ArrayList<>(shape);
        both.set(0, shape.getFirst() + other.getFirst());
        return both;
    }

    /** @param expert its number, if the part is an expert's */
    String weight(Part part, int expert) {
        return tensor(part, expert) + (part == Part.ROUTER_CORRECTION || part == Part.SINKS ? "" : ".weight");
    }

    /** @param expert as of {@link #weight} */
    String bias(Part part, int expert) {
        return tensor(part, expert) + ".bias";
    }

    private String tensor(Part part, int expert) {
        return Objects.requireNonNull(tensors.get(part)).replace("*", Integer.toString(expert));
    }

    /** Rows of a part's tensor that are in front of it. */
    long firstRow(Part part, ModelConfig config) {
        return Arrays.stream(Part.values())
                .filter(other -> other.compareTo(part) < 0 && Objects.equals(tensors.get(other), tensors.get(part)))
                .mapToLong(other -> other.shape(config).getFirst())
                .sum();
    }
}
