package baton.store.mooncake;

/**
 * Where a store's objects are among those of others.
 *
 * @param prefix {@code cache_prefix}, before all keys; may be empty
 * @param model name of the model, of which keys have the last component
 * @param tensorShares objects among which a layer's heads are divided
 * @param pipelineShares objects among which the layers are divided
 */
public record MooncakeNames(String prefix, String model, int tensorShares, int pipelineShares) {}
