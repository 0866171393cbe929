package baton.cluster;

import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;

/**
 * Command line of a JVM without the program's arguments.
 *
 * @param jvm the executable and its options, the class path among them
 * @param mainClass its name
 */
public record JavaCommand(List<String> jvm, String mainClass) {
    /** What a router allocates lives as long as a request: a small young generation is collected in a millisecond, by one thread. */
    private static final List<String> ROUTER = List.of("-XX:+UseSerialGC", "-XX:NewSize=64m", "-XX:MaxNewSize=64m");

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

    /** The same with more options of the JVM. */
    public JavaCommand withOptions(List<String> options) {
        List<String> all = new ArrayList<>(jvm);
        all.addAll(options);
        return new JavaCommand(all, mainClass);
    }

    /** The same with the collector of a router, as the launcher has it, unless these options choose one. */
    public JavaCommand forRouter() {
        return jvm.stream().anyMatch(option -> option.startsWith("-XX:") && option.contains("GC"))
                ? this
                : withOptions(ROUTER);
    }

    /** The whole command line. */
    public List<String> with(List<String> arguments) {
        List<String> all = new ArrayList<>(jvm);
        all.add(mainClass);
        all.addAll(arguments);
        return List.copyOf(all);
    }
}
