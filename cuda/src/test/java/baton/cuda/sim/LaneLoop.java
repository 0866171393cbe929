package baton.cuda.sim;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.lang.invoke.MethodHandles;

/**
 * Executes an instruction in lanes of a warp. Each instruction has a copy of the class, so that the JIT compiler makes a loop of its
 * own for it, with the function inlined.
 */
interface LaneLoop {
    /** Rows of registers: {@code d} is written, or a predicate where the function is a test. */
    void run(Warp warp, int d, int a, int b, int c, int lanes);

    /**
     * The function that a copy of a loop applies.
     *
     * @param test whether the result is a predicate
     * @param wideResult whether the result has 64 bits, and so for the operands
     */
    record Plan(LaneFunction function, boolean test, boolean wideResult, boolean wideA, boolean wideB, boolean wideC) {}

    static LaneLoop of(Plan plan) {
        Class<?> template = switch (plan.function) {
            case LaneFunction.Words _ -> WordsLoop.class;
            case LaneFunction.Wide _ -> WideLoop.class;
        };
        try (InputStream bytes = LaneLoop.class.getResourceAsStream(template.getSimpleName() + ".class")) {
            if (bytes == null) {
                throw new IllegalStateException("the class file of " + template + " is missing");
            }
            MethodHandles.Lookup copy =
                    MethodHandles.lookup().defineHiddenClassWithClassData(bytes.readAllBytes(), plan, true);
            return (LaneLoop) copy.lookupClass().getDeclaredConstructor().newInstance();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException("no copy of " + template + " could be made", e);
        }
    }

    /** The plan of the copy of a template. */
    static Plan plan(MethodHandles.Lookup copy) {
        try {
            return MethodHandles.classData(copy, "_", Plan.class);
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }
}
