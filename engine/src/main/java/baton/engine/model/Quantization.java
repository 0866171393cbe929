package baton.engine.model;

import baton.kv.ConfigException;
import java.util.Locale;

/** How a model's matrices are kept. Embedding and norms stay in the type of computation. */
public enum Quantization {
    /** Weights keep the type of computation. */
    NONE,
    /**
     * 8-bit integers, made when the model is loaded, with one scale for each output channel; the output projection too. Activations
     * stay in the type that products of other weights take.
     */
    INT8;

    /** The name on the command line. */
    public String label() {
        return name().toLowerCase(Locale.ROOT);
    }

    /**
     * The quantization of that name.
     *
     * @throws ConfigException naming {@code field} if there is none
     */
    public static Quantization parse(String field, String name) {
        return ConfigException.choose(field, name.toLowerCase(Locale.ROOT), values(), Quantization::label);
    }
}
