package baton.engine.model;

import baton.engine.kernel.ParallelFor;
import baton.kv.KvCache;
import baton.kv.KvFence;
import baton.kv.ModelFingerprint;
import baton.kv.VerifyKv;
import baton.kv.connector.HiddenState;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;

/**
 * A model that runs forward over slices of sequences, all in one batch, reading and writing their keys and values in a paged
 * cache. Used by one thread.
 */
public interface ModelRunner extends AutoCloseable {
    /** The whole model, whatever part of it this runner has. */
    ModelConfig config();

    ModelFingerprint fingerprint();

    /** Its kernels and the reasons for them, one line each; empty if there is no choice. */
    default List<String> kernels() {
        return List.of();
    }

    /** The best rates of this runner's operators, of those that have had enough work to be measured. */
    default List<OperatorRate> operatorRates() {
        return List.of();
    }

    /** The cache that {@link #forward} reads and writes. */
    KvCache cache();

    /**
     * Computes the slices' tokens: writes their keys and values to their slots, and returns the logits asked for, rows in the order
     * of the slices and of the tokens within them. The caller closes the logits before the next call. Of several ranks of a model
     * ({@link ModelRanks}) one returns them.
     */
    Logits forward(List<SequenceSlice> slices, LayerHooks hooks);

    /** The threads that this runner computes with, for other loops of its thread's while it does not compute. */
    default ParallelFor threads() {
        return ParallelFor.alone();
    }

    /** True if {@link #forward} can compute logits from such a hidden state: it has this model's size and type. */
    boolean takes(HiddenState state);

    /** Whether {@link #forward} compares the tokens of {@link LayerHooks#loaded}. */
    default boolean comparesLoaded() {
        return false;
    }

    @Override
    void close();

    /**
     * Tokens of a slice's sequence with loaded keys and values, to be compared with those that this model computes. Tokens that the slice
     * computes again are compared in all layers, before they are replaced.
     *
     * @param tokens ids
     * @param from position of the first
     * @param verify which of them are compared in the first layer, and computed to be compared in all
     */
    record LoadedTokens(int[] tokens, int from, VerifyKv verify) {}

    /**
     * Loaded keys and values that differ from this model's.
     *
     * @param layer of the whole model
     * @param position in the sequence
     * @param distance from this model's, in parts of their norm; not a number if they are not
     */
    record Deviation(int layer, int position, double distance) {}

    /**
     * The result of comparing the loaded tokens of a step.
     *
     * @param wrong the first deviation of each slice that has one, by its index
     * @param firstLayer the greatest distance in the model's first layer in slices without deviations; 0 if there are none
     * @param upperLayers the same in all other layers
     */
    record Comparison(Map<Integer, Deviation> wrong, double firstLayer, double upperLayers) {
        public static final Comparison NONE = new Comparison(Map.of(), 0, 0);

        /** Both, of two ranks of a model. */
        public Comparison and(Comparison other) {
            Map<Integer, Deviation> both = new TreeMap<>(wrong);
            both.putAll(other.wrong);
            return new Comparison(
                    both, Math.max(firstLayer, other.firstLayer), Math.max(upperLayers, other.upperLayers));
        }
    }

    /**
     * The tokens of one sequence that a step computes.
     *
     * @param tokens their ids
     * @param start position of the first; the keys and values of all positions before it are in the cache
     * @param blockTables blocks of the sequence by group of {@link KvCache#groups}; position {@code p} lies in block {@code blockTables[group][p
     *     / blockSize]}, slot {@code p % blockSize}
     * @param logits how many tokens, counted from the last, want logits
     * @param hidden of a slice without tokens that wants one row of logits: the hidden state of the token before {@code start}, which
     *     was computed elsewhere
     */
    record SequenceSlice(int[] tokens, int start, int[][] blockTables, int logits, Optional<HiddenState> hidden) {
        /** A slice in a pool with one group. */
        public SequenceSlice(int[] tokens, int start, int[] blockTable, int logits, Optional<HiddenState> hidden) {
            this(tokens, start, new int[][] {blockTable}, logits, hidden);
        }

        /** A slice in a pool with one group. */
        public SequenceSlice(int[] tokens, int start, int[] blockTable, int logits) {
            this(tokens, start, blockTable, logits, Optional.empty());
        }

        /** The block table of the first group, which may be the only one. */
        public int[] blockTable() {
            return blockTables[0];
        }
    }

    /** Called before and around the layers of this runner, counted from 0, so that keys and values can be loaded just in time and saved early. */
    interface LayerHooks {
        LayerHooks NONE = new LayerHooks() {};

        /** The batch is laid out; from here on the model computes. */
        default void begin() {}

        /**
         * The layer is about to read and write the cache.
         *
         * @return passed when keys and values from elsewhere are in the cache; before that the layer reads nothing of it
         */
        default KvFence beforeLayer(int layer) {
            return KvFence.PASSED;
        }

        /**
         * The layer is computed, or on its way through a device.
         *
         * @param computed passed when the keys and values of this layer, and of those before it, are in the cache
         */
        default void afterLayer(int layer, KvFence computed) {}

        /** The tokens to compare, by the index of the slice; empty unless the runner {@link ModelRunner#comparesLoaded}. */
        default Map<Integer, LoadedTokens> loaded() {
            return Map.of();
        }

        /** Called after the last layer. */
        default void compared(Comparison comparison) {}

        /** The indices of the slices that need the hidden state of their last token. */
        default Set<Integer> hiddenWanted() {
            return Set.of();
        }

        /**
         * All layers of all stages are computed; not called in a rank that later stages follow.
         *
         * @param slice one of {@link #hiddenWanted}
         * @param state of its last token, in memory that is valid during the call
         */
        default void hidden(int slice, HiddenState state) {}
    }
}
