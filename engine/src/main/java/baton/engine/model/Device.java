package baton.engine.model;

import baton.kv.ConfigException;
import java.util.Locale;

/** Where a model is computed. */
public enum Device {
    /** The best device of this machine that computes the model. */
    AUTO,
    CPU,
    CUDA;

    /** @throws ConfigException naming the field if there is no such device */
    public static Device parse(String field, String text) {
        for (Device device : values()) {
            if (device.name().toLowerCase(Locale.ROOT).equals(text)) {
                return device;
            }
        }
        throw ConfigException.unsupported(field, text, "auto, cpu, cuda");
    }
}
