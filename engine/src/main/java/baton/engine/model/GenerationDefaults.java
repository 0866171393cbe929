package baton.engine.model;

import java.util.OptionalDouble;
import java.util.OptionalInt;

/**
 * How the checkpoint's makers want it sampled when a request does not say: generation_config.json's values where its
 * {@code do_sample} is true, else nothing.
 */
public record GenerationDefaults(OptionalDouble temperature, OptionalDouble topP, OptionalInt topK) {
    public static final GenerationDefaults NONE =
            new GenerationDefaults(OptionalDouble.empty(), OptionalDouble.empty(), OptionalInt.empty());
}
