package baton.cli;

import baton.kv.ConfigException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Optional;

/** Directories of models. */
final class Models {
    private Models() {}

    /** The model that comes with Baton. */
    static Path embedded() {
        Path model = Path.of(System.getProperty("baton.home", "."), "models", "tiny-ledger");
        if (!Files.isDirectory(model)) {
            throw new ConfigException(
                    "model", "the embedded model is not at " + model + "; give a model directory, or set -Dbaton.home");
        }
        return model;
    }

    static Path orEmbedded(Optional<Path> model) {
        return model.orElseGet(Models::embedded);
    }
}
