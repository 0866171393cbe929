package baton.engine.backend;

import baton.engine.model.Device;
import baton.kv.ConfigException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.ServiceLoader;

/** Finds the backend that computes on a device. */
public final class ModelBackends {
    private ModelBackends() {}

    /**
     * The preferred backend of those on the class path that can compute on the device.
     *
     * @throws ConfigException with the reasons if there is none
     */
    public static ModelBackend on(Device device) {
        List<ModelBackend> backends = ServiceLoader.load(ModelBackend.class).stream()
                .map(ServiceLoader.Provider::get)
                .sorted(Comparator.comparingInt(ModelBackend::preference).reversed())
                .toList();
        List<String> reasons = new ArrayList<>();
        for (ModelBackend backend : backends) {
            Optional<String> whyNot = backend.whyNot(device);
            if (whyNot.isEmpty()) {
                return backend;
            }
            reasons.add(whyNot.get());
        }
        throw new ConfigException(
                "device",
                "is '%s', but %s; allowed: auto, cpu"
                        .formatted(device.name().toLowerCase(Locale.ROOT), String.join("; ", reasons)));
    }
}
