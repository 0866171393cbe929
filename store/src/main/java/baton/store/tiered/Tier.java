package baton.store.tiered;

import baton.store.BlockStore;
import java.util.Optional;

/**
 * A store behind the memory of a {@link TieredStore}.
 *
 * @param backpressure of its writes; empty if none of them is ever dropped for being slow
 * @param tellsEvents whether the engine's listeners are notified of the values that it stores and removes
 */
public record Tier(BlockStore store, Optional<Backpressure> backpressure, boolean tellsEvents) {}
