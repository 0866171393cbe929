package baton.engine.backend;

import baton.engine.model.Device;
import baton.engine.model.ModelConfig;
import baton.engine.model.Quantization;
import baton.kv.ConfigException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.ServiceLoader;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Finds the backend that computes on a device. */
public final class ModelBackends {
    private static final Logger LOG = LoggerFactory.getLogger(ModelBackends.class);

    private ModelBackends() {}

    /**
     * A backend, or the processor's where any device will do and the backend does not compute the model.
     *
     * @param ranks that share the model
     */
    public static ModelBackend computing(
            ModelBackend found, Device device, ModelConfig model, Quantization quantization, int ranks) {
        Optional<String> whyNot = found.whyNot(model, quantization, ranks);
        if (device.kind() != Device.Kind.AUTO || whyNot.isEmpty()) {
            return found;
        }
        LOG.info("device auto: the model is computed on the processor, because {}", whyNot.get());
        return on(Device.CPU);
    }

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
                return backend.on(device);
            }
            reasons.add(whyNot.get());
        }
        throw new ConfigException(
                "device", "is '%s', but %s; allowed: auto, cpu".formatted(device, String.join("; ", reasons)));
    }
}
