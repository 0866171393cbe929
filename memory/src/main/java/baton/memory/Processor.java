package baton.memory;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * The processor's name and instruction sets, by Linux' names for them.
 *
 * @param flags those that all cores have; empty where the system does not list them
 */
public record Processor(Platform platform, String name, Set<String> flags) {
    private static final Path CPUINFO = Path.of("/proc/cpuinfo");

    public Processor {
        flags = Set.copyOf(flags);
    }

    /** The one that this process runs on. */
    public static Processor current() {
        Platform platform = Platform.current();
        if (!platform.isLinux()) {
            return new Processor(platform, "unknown", Set.of());
        }
        try {
            return of(platform, Files.readAllLines(CPUINFO));
        } catch (IOException | UncheckedIOException _) {
            return new Processor(platform, "unknown", Set.of());
        }
    }

    /** @param cpuinfo lines of Linux' {@code /proc/cpuinfo} */
    static Processor of(Platform platform, List<String> cpuinfo) {
        Optional<Set<String>> common = cpuinfo.stream()
                .filter(line -> line.startsWith("flags"))
                .map(line -> (Set<String>) new HashSet<>(List.of(line.split("[\\s:]+"))))
                .reduce((one, other) -> {
                    one.retainAll(other);
                    return one;
                });
        String name = cpuinfo.stream()
                .filter(line -> line.startsWith("model name"))
                .map(line -> line.substring(line.indexOf(':') + 1).strip())
                .findFirst()
                .orElse("unknown");
        return new Processor(platform, name, common.orElse(Set.of()));
    }

    /** Whether it is an x86-64 processor, all cores of which have these instruction sets. */
    public boolean has(String... sets) {
        return platform.isX86() && flags.containsAll(List.of(sets));
    }
}
