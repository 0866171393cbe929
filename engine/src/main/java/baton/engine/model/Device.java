package baton.engine.model;

import baton.kv.ConfigException;
import java.util.Locale;
import java.util.Optional;

/**
 * Where a model is computed.
 *
 * @param number of a GPU, among those that {@code CUDA_VISIBLE_DEVICES} leaves; else 0
 */
public record Device(Kind kind, int number) {
    /** The best device of this machine that computes the model. */
    public static final Device AUTO = new Device(Kind.AUTO, 0);

    public static final Device CPU = new Device(Kind.CPU, 0);
    /** The first GPU. */
    public static final Device CUDA = new Device(Kind.CUDA, 0);

    /** Kinds of devices. */
    public enum Kind {
        AUTO,
        CPU,
        CUDA
    }

    /** @throws ConfigException naming the field if there is no such device */
    public static Device parse(String field, String text) {
        for (Device device : new Device[] {AUTO, CPU, CUDA}) {
            if (device.toString().equals(text)) {
                return device;
            }
        }
        String gpu = CUDA + ":";
        return Optional.of(text)
                .filter(each -> each.startsWith(gpu))
                .map(each -> each.substring(gpu.length()))
                .filter(number -> number.matches("\\d{1,4}"))
                .map(number -> new Device(Kind.CUDA, Integer.parseInt(number)))
                .orElseThrow(() -> ConfigException.unsupported(field, text, "auto, cpu, cuda, cuda:N"));
    }

    /** The text that {@link #parse} reads. */
    @Override
    public String toString() {
        return kind.name().toLowerCase(Locale.ROOT) + (number == 0 ? "" : ":" + number);
    }
}
