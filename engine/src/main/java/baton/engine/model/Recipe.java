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

/**
 * The computation of a decoder as data: {@link DecoderFamily} makes it of config.json, {@link DecoderRunner} carries it out. Every layer
 * is attention and a gated feed-forward layer, each of which adds to the residual stream, with the norms that {@code tensors} names.
 *
 * @param architecture the family's name in config.json
 * @param layers the attention of each layer, which may be computed when it is asked for
 * @param tensors by part of a layer, the tensor that holds it, as its name in the checkpoint reads between {@code model.layers.N.} and
 *     {@code .weight}. Parts in one tensor are its rows in the order of {@link Part}. A layer has the parts that are named
 * @param biased the parts whose product has a bias added, beside the weight in the checkpoint
 * @param feedForward kind of the feed-forward layer
 * @param onePlusNorms norms multiply by 1 plus their weights
 * @param logitCap bound of logits: {@code cap * tanh(logit / cap)}
 */
public record Recipe(
        String architecture,
        List<LayerAttention> layers,
        Map<Part, String> tensors,
        Set<Part> biased,
        FeedForward feedForward,
        Scales scales,
        boolean onePlusNorms,
        Optional<Double> logitCap) {
    /** Names of tensors as most families have them, without norms. */
    static final Map<Part, String> USUAL_PRODUCTS = Map.of(
            Part.QUERIES, "self_attn.q_proj",
            Part.KEYS, "self_attn.k_proj",
            Part.VALUES, "self_attn.v_proj",
            Part.OUTPUT, "self_attn.o_proj",
            Part.GATE, "mlp.gate_proj",
            Part.UP, "mlp.up_proj",
            Part.DOWN, "mlp.down_proj");

    /** With norms of inputs. */
    static final Map<Part, String> USUAL_TENSORS = with(
            USUAL_PRODUCTS,
            Map.of(Part.ATTENTION_NORM, "input_layernorm", Part.FEED_FORWARD_NORM, "post_attention_layernorm"));

    public Recipe {
        tensors = Map.copyOf(tensors);
        biased = Set.copyOf(biased);
    }

    /** A part of a layer, with weights of its own. */
    public enum Part {
        /** Norm of the input of attention. */
        ATTENTION_NORM,
        QUERIES,
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
        OUTPUT,
        /** Norm of the result of attention. */
        AFTER_ATTENTION_NORM,
        /** Norm of the input of the feed-forward layer. */
        FEED_FORWARD_NORM,
        GATE,
        UP,
        DOWN,
        /** Norm of the result of the feed-forward layer. */
        AFTER_FEED_FORWARD_NORM;

        static final Set<Part> PROJECTIONS = Set.of(QUERIES, KEYS, VALUES);

        /** Shape of the weight in a model. */
        List<Long> shape(ModelConfig config) {
            long hidden = config.hiddenSize();
            long queries = (long) config.heads() * config.headDim();
            long keys = (long) config.kvHeads() * config.headDim();
            long intermediate = config.intermediateSize();
            return switch (this) {
                case ATTENTION_NORM, AFTER_ATTENTION_NORM, FEED_FORWARD_NORM, AFTER_FEED_FORWARD_NORM ->
                    List.of(hidden);
                case QUERY_NORM, KEY_NORM -> List.of((long) config.headDim());
                case QUERIES_NORM -> List.of(queries);
                case KEYS_NORM -> List.of(keys);
                case QUERIES -> List.of(queries, hidden);
                case KEYS, VALUES -> List.of(keys, hidden);
                case OUTPUT -> List.of(hidden, queries);
                case GATE, UP -> List.of(intermediate, hidden);
                case DOWN -> List.of(hidden, intermediate);
            };
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
     */
    public record Rotation(double theta, Optional<RopeScaling> scaling) {}

    /** Kinds of feed-forward layers. */
    public sealed interface FeedForward {}

    /** {@code down(activation(gate(x)) * up(x))}. */
    public record Dense(Activation activation) implements FeedForward {}

    /**
     * Factors.
     *
     * @param embedding of a token's embedding, rounded to the type that the model computes in
     * @param scores of the products of queries and keys; empty: one over the root of a head's elements
     * @param residual of what attention and the feed-forward layer add
     * @param logits of the products with the output projection
     */
    public record Scales(double embedding, Optional<Double> scores, double residual, double logits) {
        static final Scales NONE = new Scales(1, Optional.empty(), 1, 1);
    }

    /** Llama without biases. */
    static Recipe llama(int layers, Rotation rotation) {
        return usual(
                "LlamaForCausalLM",
                Collections.nCopies(layers, new LayerAttention(new Everything(), rotation)),
                USUAL_TENSORS,
                Set.of());
    }

    /** With SiLU and no factors. */
    static Recipe usual(String architecture, List<LayerAttention> layers, Map<Part, String> tensors, Set<Part> biased) {
        return new Recipe(
                architecture,
                layers,
                tensors,
                biased,
                new Dense(Activation.SILU),
                Scales.NONE,
                false,
                Optional.empty());
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
        }
        if (!feedForward.equals(new Dense(Activation.SILU))) {
            traits.add("feed_forward=" + feedForward);
        }
        if (!scales.equals(Scales.NONE)) {
            traits.add("scales=" + scales);
        }
        if (onePlusNorms) {
            traits.add("norms=1+weight");
        }
        logitCap.ifPresent(cap -> traits.add("logit_cap=" + cap));
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
        List<LayerAttention> some = List.copyOf(layers.subList(range.first(), range.first() + range.count()));
        return new Recipe(architecture, some, tensors, biased, feedForward, scales, onePlusNorms, logitCap);
    }

    /** A layer's tensors in a model by name, as it reads behind {@code model.layers.N.}. */
    Map<String, List<Long>> shapes(ModelConfig config) {
        Map<String, List<Long>> shapes = new TreeMap<>();
        for (Part part : Part.values()) {
            if (has(part)) {
                List<Long> shape = part.shape(config);
                shapes.merge(weight(part), shape, Recipe::below);
                if (biased.contains(part)) {
                    shapes.merge(bias(part), shape.subList(0, 1), Recipe::below);
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

    String weight(Part part) {
        return Objects.requireNonNull(tensors.get(part)) + ".weight";
    }

    String bias(Part part) {
        return Objects.requireNonNull(tensors.get(part)) + ".bias";
    }

    /** Rows of a part's tensor that are in front of it. */
    long firstRow(Part part, ModelConfig config) {
        return Arrays.stream(Part.values())
                .filter(other -> other.compareTo(part) < 0 && Objects.equals(tensors.get(other), tensors.get(part)))
                .mapToLong(other -> other.shape(config).getFirst())
                .sum();
    }
}
