package baton.cluster;

import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

/**
 * Command line of a JVM without the program's arguments.
 *
 * @param jvm the executable and its options, the class path among them
 * @param mainClass its name
 */
public record JavaCommand(List<String> jvm, String mainClass) {
    /**
     * A router's objects live as long as a request: a small young generation is collected in a millisecond, by one thread. Its code is a chain of many
     * small methods, of which the compilers take half the time if they copy less of one into another.
     */
    private static final List<String> ROUTER =
            List.of("-XX:+UseSerialGC", "-XX:NewSize=128m", "-XX:MaxNewSize=128m", "-XX:FreqInlineSize=60");

    private static final Pattern COLLECTOR = Pattern.compile("-XX:.*GC.*");

    public JavaCommand {
        jvm = List.copyOf(jvm);
    }

    /** A JVM with the executable, the options (an AOT cache among them) and the class path of this process. */
    public static JavaCommand likeThisProcess(String mainClass) {
        List<String> jvm =
                new ArrayList<>(List.of(ProcessHandle.current().info().command().orElse("java")));
        jvm.addAll(ManagementFactory.getRuntimeMXBean().getInputArguments());
        jvm.addAll(List.of("-cp", System.getProperty("java.class.path")));
        return new JavaCommand(jvm, mainClass);
    }

    /** The same with more options of the JVM. One that chooses a collector replaces that which is chosen. */
    public JavaCommand withOptions(List<String> options) {
        List<String> all = new ArrayList<>(jvm);
        if (choosesCollector(options)) {
            all.removeIf(option -> choosesCollector(List.of(option)));
        }
        all.addAll(options);
        return new JavaCommand(all, mainClass);
    }

    /** The same with the launcher's garbage collector of a router, unless these options choose one. */
    public JavaCommand forRouter() {
        return choosesCollector(jvm) ? this : withOptions(ROUTER);
    }

    private static boolean choosesCollector(List<String> options) {
        return options.stream().anyMatch(COLLECTOR.asMatchPredicate());
    }

    /** The whole command line. */
    public List<String> with(List<String> arguments) {
        List<String> all = new ArrayList<>(jvm);
        all.add(mainClass);
        all.addAll(arguments);
        return List.copyOf(all);
    }
}
