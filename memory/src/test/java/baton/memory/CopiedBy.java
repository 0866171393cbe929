package baton.memory;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.memory.CopyKernel.Vectors;
import java.util.Optional;

/** The code that a test has copy memory. */
enum CopiedBy {
    VECTORS_OF_512_BITS(Optional.of(Vectors.OF_512_BITS)),
    VECTORS_OF_256_BITS(Optional.of(Vectors.OF_256_BITS)),
    VECTORS_OF_128_BITS(Optional.of(Vectors.OF_128_BITS)),
    JAVA(Optional.empty());

    private final Optional<Vectors> vectors;

    CopiedBy(Optional<Vectors> vectors) {
        this.vectors = vectors;
    }

    /** The kernel, empty for Java; ends the test as skipped where the processor lacks its instructions. */
    Optional<CopyKernel> kernel() {
        if (vectors.isEmpty()) {
            return Optional.empty();
        }
        require(vectors.get());
        Optional<CopyKernel> kernel = CopyKernel.load(vectors.get(), Processor.current(), CopyKernel::new);
        assertThat(kernel).as("a kernel of %s", vectors).isPresent();
        return kernel;
    }

    static void require(Vectors vectors) {
        assumeTrue(
                vectors.areIn(Processor.current()),
                () -> "the processor lacks one of " + String.join(", ", vectors.instructionSets()));
    }
}
