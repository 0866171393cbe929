package baton.store.mooncake;

/**
 * The place of a store's objects among the objects of other stores.
 *
 * @param prefix {@code cache_prefix}, before all keys; may be empty
 * @param model name of the model, of which keys have the last component
 * @param tensorShares objects among which a layer's heads are divided
 * @param pipelineShares objects among which the layers are divided
 */
public record MooncakeNames(String prefix, String model, int tensorShares, int pipelineShares) {}
