package baton.cuda.model;

import baton.cuda.driver.NativeDriver;
import baton.cuda.driver.NativeDriver.Search;
import baton.cuda.sim.SimulatedDriver;
import java.nio.file.Path;
import java.util.Objects;

/** Backends of tests: of a simulated device, or of one that exists, if {@code BATON_CUDA_TESTS} is {@code device}. */
final class TestBackends {
    private static final Path ROOT = Path.of(System.getProperty("baton.root", ".."));

    static final Path TINY_LEDGER = ROOT.resolve("models/tiny-ledger");

    private TestBackends() {}

    static CudaBackend backend() {
        if (Objects.equals(System.getenv("BATON_CUDA_TESTS"), "device")) {
            return new CudaBackend(NativeDriver::find);
        }
        SimulatedDriver driver = new SimulatedDriver();
        return new CudaBackend(() -> new Search.Found(driver));
    }

    /** A small random checkpoint of a family. */
    static Path family(String name) {
        return ROOT.resolve("engine/src/test/resources/baton/engine/model/goldens")
                .resolve(name);
    }
}
