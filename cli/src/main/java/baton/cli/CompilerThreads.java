package baton.cli;

import baton.memory.Platform;
import baton.memory.Posix;
import java.io.IOException;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The threads of the JVM's compilers. A server that has warmed up has code that is fast enough to serve; later compilations must not take
 * the processor from a request for tens of milliseconds, but may use time that no request needs.
 */
final class CompilerThreads {
    private static final Logger log = LoggerFactory.getLogger(CompilerThreads.class);
    private static final Path THREADS = Path.of("/proc/self/task");

    /** The nice value, of 19 at most: a tenth of a processor where others want it, all of it otherwise. */
    static final int NICE = 10;

    private static final int PRIO_PROCESS = 0;

    private static final class Calls {
        private static final MethodHandle SET_PRIORITY = Posix.function(
                "setpriority",
                FunctionDescriptor.of(
                        ValueLayout.JAVA_INT, ValueLayout.JAVA_INT, ValueLayout.JAVA_INT, ValueLayout.JAVA_INT));
    }

    private CompilerThreads() {}

    /**
     * Has the optimizing compiler's come after all others. While a server starts it takes half of the processor time, for code that the first
     * requests can do without.
     */
    static void stepBackOptimizing() {
        stepBack("2");
    }

    /** Has them come after all others from now on, those that they start too; on other systems than Linux it does nothing. */
    static void stepBack() {
        stepBack("[12]");
    }

    /** @param compilers a regular expression of digits in the names of HotSpot's threads, which Linux shortens */
    private static void stepBack(String compilers) {
        if (!Platform.current().isLinux()) {
            return;
        }
        try (DirectoryStream<Path> threads = Files.newDirectoryStream(THREADS)) {
            for (Path thread : threads) {
                if (Files.readString(thread.resolve("comm")).strip().matches("C" + compilers + " CompilerThre.*")) {
                    stepBack(Integer.parseInt(thread.getFileName().toString()));
                }
            }
        } catch (IOException e) {
            log.debug("the JVM's compilers keep their priority: {}", e.toString());
        }
    }

    private static void stepBack(int thread) {
        if (Posix.call(() -> (int) Calls.SET_PRIORITY.invokeExact(PRIO_PROCESS, thread, NICE)) != 0) {
            log.debug("compiler thread {} keeps its priority", thread);
        }
    }
}
