package baton.testkit;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Published models in the directory that the environment variable {@code BATON_REAL_MODELS} names: SmolLM2-135M-Instruct and Gemma 3 270M as
 * checkpoints in bf16, and the GGUF files that these were made of.
 */
public enum RealModels {
    SMOLLM2("smollm2-135m", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    GEMMA3("gemma3-270m", "gemma-3-270m.Q4_K_M.gguf");

    private static final String VARIABLE = "BATON_REAL_MODELS";

    private final String checkpoint;
    private final String gguf;

    RealModels(String checkpoint, String gguf) {
        this.checkpoint = checkpoint;
        this.gguf = gguf;
    }

    /** The name of the checkpoint's directory. */
    public String checkpoint() {
        return checkpoint;
    }

    /** The checkpoint's directory; skips the test, with the reason, where it is missing. */
    public Path assumeCheckpoint() {
        return assumePresent(checkpoint);
    }

    /** The GGUF file; skips the test, with the reason, where it is missing. */
    public Path assumeGguf() {
        return assumePresent(gguf);
    }

    private static Path assumePresent(String name) {
        String directory = System.getenv(VARIABLE);
        assumeTrue(directory != null, VARIABLE + " is not set: it names a directory with published models");
        Path model = Path.of(directory, name);
        assumeTrue(Files.exists(model), () -> VARIABLE + "=" + directory + ": has no " + name);
        return model;
    }
}
