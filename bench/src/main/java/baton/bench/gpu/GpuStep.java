package baton.bench.gpu;

import java.time.Duration;
import java.util.Locale;
import tools.jackson.databind.node.ObjectNode;

/** The parts of the report, in their order. Each runs in a process of its own, so that a failure of the driver ends one only. */
public enum GpuStep {
    DEVICE(60, DriverSteps::device),
    TESTS(200, Programs::tests),
    COPIES(60, DriverSteps::copies),
    IPC(60, DriverSteps::ipc),
    PRODUCTS(60, DriverSteps::products),
    GOLDEN(90, ModelSteps::golden),
    HANDOVERS(90, ModelSteps::handovers),
    MODEL_1B(180, ModelSteps::model1b),
    NCCL(30, Programs::nccl),
    TORCH(90, Programs::torch);

    private final Duration timeout;

    @SuppressWarnings("ImmutableEnumChecker") // Functions without state.
    private final Part part;

    GpuStep(int seconds, Part part) {
        this.timeout = Duration.ofSeconds(seconds);
        this.part = part;
    }

    private interface Part {
        void run(GpuCheck check, ObjectNode json) throws Exception;
    }

    /** The longest time that it may take. */
    Duration timeout() {
        return timeout;
    }

    /** Its name in the report. */
    public String label() {
        return name().toLowerCase(Locale.ROOT);
    }

    /** Runs it in this process. Results until a failure are in the report. */
    void run(GpuCheck check, ObjectNode json) throws Exception {
        part.run(check, json);
    }
}
