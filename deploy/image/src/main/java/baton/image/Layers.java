package baton.image;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.FileTime;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import java.util.function.Predicate;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * Makes the layers of the image, a directory for each: {@code system} (a Java runtime by jlink, and the parts of the C library and others
 * that it and LibTorch load), {@code native} (LibTorch and the tokenizer, unpacked), {@code program} (jars, the tiny model, the AOT cache).
 *
 * <p>The image has no shell. Nothing is unpacked when it runs, so that its file system can be read-only.
 */
public final class Layers {
    /** The modules of the JDK that libraries use, also by name only; jdk.unsupported has {@code sun.misc.Signal}. */
    private static final List<String> MODULES = List.of(
            "java.logging", "java.management", "java.naming", "java.xml", "jdk.management", "jdk.unsupported", "jdk.zipfs");

    /** In every jar of Baton's own. */
    private static final String PACKAGE = "baton/";

    /** A line of {@code jdeps -summary}. */
    private static final Pattern USES = Pattern.compile("\\S+ -> ((?:java|jdk)\\.\\S+)");

    /** What Jib gives all files. The AOT cache belongs to jars and a runtime of a size and a time. */
    private static final FileTime TIME = FileTime.from(Instant.EPOCH.plusSeconds(1));

    private static final Duration DEADLINE = Duration.ofMinutes(5);
    private static final Pattern NEEDED = Pattern.compile("\\s*(?:\\S+ => )?(/\\S+) \\(0x[0-9a-f]+\\)");
    private static final String NATIVES = "linux-x86_64";
    private static final Set<String> UNUSED = Set.of("libjniopenblas_full.so");
    private static final String TOKENIZER = "native/lib/linux-x86_64/cpu/libtokenizers.so";

    /** By whatever name JavaCPP loads it, the file says that it is libopenblas.so.0; so one file is enough. */
    private static final Map<String, String> RENAMED = Map.of("libopenblas.so.0", "libopenblas_nolapack.so.0");

    private final Path repository;
    private final Path system;
    private final Path natives;
    private final Path program;
    private final Predicate<String> leftOut;

    private Layers(Path repository, Path target, Pattern leftOut) {
        this.leftOut = leftOut.asMatchPredicate();
        this.repository = repository;
        this.system = target.resolve("system");
        this.natives = target.resolve("native");
        this.program = target.resolve("program");
    }

    /**
     * @param args the repository, with {@code cli} packaged; a directory for the layers, which is emptied; and a regular expression of the names
     *     of jars that are left out
     */
    public static void main(String[] args) throws IOException, InterruptedException {
        Path target = Path.of(args[1]);
        delete(target);
        new Layers(Path.of(args[0]), target, Pattern.compile(args[2])).make();
    }

    private void make() throws IOException, InterruptedException {
        Path home = Files.createDirectories(program.resolve("opt/baton"));
        List<String> jars = unpack(Files.createDirectories(home.resolve("lib")));
        Path java = system.resolve("opt/java");
        Files.createDirectories(java.getParent());
        run(
                List.of(
                        tool("jlink"),
                        "--add-modules",
                        String.join(",", modules(home.resolve("lib"))),
                        "--strip-debug",
                        "--no-header-files",
                        "--no-man-pages",
                        "--output",
                        java.toString()),
                Map.of());
        copyTree(repository.resolve("models/tiny-ledger"), home.resolve("models/tiny-ledger"));
        copyLibraries();
        write(system.resolve("etc/passwd"), "root:x:0:0::/:\nbaton:x:10001:10001::/tmp:\n");
        write(system.resolve("etc/group"), "root:x:0:\nbaton:x:10001:\n");
        write(system.resolve("etc/nsswitch.conf"), "hosts: files dns\n");
        Files.createDirectories(system.resolve("tmp"));
        for (Path layer : List.of(system, natives, program)) {
            setTimes(layer);
        }
        train(java, home, jars);
        write(
                home.resolve("java.options"),
                String.join("\n", options(Path.of("/opt/baton"), Path.of("/opt/baton"), jars)) + "\n");
        setTimes(program);
    }

    private static String tool(String name) {
        return Path.of(System.getProperty("java.home"), "bin", name).toString();
    }

    /** The JDK's modules that the runtime needs: those that the code of Baton's own jars names, and {@link #MODULES}. */
    private static Set<String> modules(Path lib) throws IOException, InterruptedException {
        Set<String> modules = new TreeSet<>(MODULES);
        List<String> command = new ArrayList<>(List.of(
                tool("jdeps"),
                "-summary",
                "--ignore-missing-deps",
                "--multi-release",
                String.valueOf(Runtime.version().feature())));
        try (Stream<Path> files = Files.list(lib)) {
            for (Path jar : files.toList()) {
                try (JarFile file = new JarFile(jar.toFile())) {
                    if (file.getEntry(PACKAGE) != null) {
                        command.add(jar.toString());
                    }
                }
            }
        }
        run(command, Map.of())
                .lines()
                .map(USES::matcher)
                .filter(Matcher::matches)
                .map(match -> match.group(1))
                .forEach(modules::add);
        return modules;
    }

    /** Copies jars, and the native files out of them. Returns the names of those that are left, in order. */
    private List<String> unpack(Path lib) throws IOException {
        Path native_ = Files.createDirectories(natives.resolve("opt/baton/native"));
        List<String> jars = new ArrayList<>();
        List<Path> all;
        try (Stream<Path> files = Files.list(repository.resolve("cli/target/lib"))) {
            all = files.filter(file -> file.toString().endsWith(".jar"))
                    .filter(file -> !leftOut.test(file.getFileName().toString()))
                    .sorted()
                    .toList();
        }
        for (Path jar : all) {
            String name = jar.getFileName().toString();
            if (name.endsWith(NATIVES + ".jar")) {
                try (JarFile file = new JarFile(jar.toFile())) {
                    for (JarEntry entry : file.stream().toList()) {
                        String library = Path.of(entry.getName()).getFileName().toString();
                        if (library.contains(".so") && !UNUSED.contains(library)) {
                            extract(file, entry, native_.resolve(RENAMED.getOrDefault(library, library)));
                        }
                    }
                }
                continue;
            }
            if (name.startsWith("tokenizers-")) {
                tokenizer(jar);
            }
            Files.copy(jar, lib.resolve(name));
            jars.add(name);
        }
        return jars;
    }

    /** Puts the tokenizer's library where its loader would unpack it. */
    private void tokenizer(Path jar) throws IOException {
        try (JarFile file = new JarFile(jar.toFile())) {
            String properties;
            try (InputStream in = file.getInputStream(file.getEntry("native/lib/tokenizers.properties"))) {
                properties = new String(in.readAllBytes(), StandardCharsets.UTF_8);
            }
            String version = properties
                    .lines()
                    .filter(line -> line.startsWith("version="))
                    .map(line -> line.substring("version=".length()).strip())
                    .findFirst()
                    .orElseThrow();
            Path place = natives.resolve("opt/baton/djl/tokenizers/%s-cpu-linux-x86_64".formatted(version));
            extract(
                    file,
                    Optional.ofNullable(file.getJarEntry(TOKENIZER)).orElseThrow(),
                    Files.createDirectories(place).resolve("libtokenizers.so"));
        }
    }

    private static void extract(JarFile jar, JarEntry entry, Path file) throws IOException {
        try (InputStream in = jar.getInputStream(entry)) {
            Files.copy(in, file, StandardCopyOption.REPLACE_EXISTING);
        }
    }

    /** Copies libraries of this system that others in the image need. */
    private void copyLibraries() throws IOException, InterruptedException {
        Set<Path> needed = new TreeSet<>();
        for (Path layer : List.of(system, natives)) {
            List<Path> files;
            try (Stream<Path> walk = Files.walk(layer)) {
                files = walk.filter(Files::isRegularFile)
                        .filter(file -> file.getFileName().toString().contains(".so") || file.endsWith("bin/java"))
                        .toList();
            }
            for (Path file : files) {
                run(
                                List.of("ldd", file.toString()),
                                Map.of(
                                        "LD_LIBRARY_PATH",
                                        natives.resolve("opt/baton/native").toString()))
                        .lines()
                        .map(NEEDED::matcher)
                        .filter(Matcher::matches)
                        .map(match -> Path.of(match.group(1)))
                        .filter(library -> !library.startsWith(system) && !library.startsWith(natives))
                        .forEach(needed::add);
            }
        }
        Files.createDirectories(system.resolve("lib64"));
        for (Path library : needed) {
            // The loader looks here whatever the distribution that the libraries are from.
            Path copy = system.resolve("lib64").resolve(library.getFileName());
            Files.copy(library.toRealPath(), copy, StandardCopyOption.REPLACE_EXISTING);
        }
    }

    /** Fills the AOT cache by a run of the image's own runtime from the layers. */
    private void train(Path java, Path home, List<String> jars) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of(java.resolve("bin/java").toString()));
        Path cache = home.resolve("baton.aot");
        command.addAll(options(home, natives.resolve("opt/baton"), jars).stream()
                .map(option -> option.startsWith("-XX:AOTCache=") ? "-XX:AOTCacheOutput=" + cache : option)
                .toList());
        command.addAll(List.of("baton.cli.Baton", "aot-training"));
        String said = run(
                command,
                Map.of("DJL_CACHE_DIR", natives.resolve("opt/baton/djl").toString()));
        if (!Files.exists(cache)) {
            throw new IOException("the training run has made no AOT cache: " + said);
        }
    }

    private static List<String> options(Path home, Path unpacked, List<String> jars) {
        return List.of(
                "--enable-native-access=ALL-UNNAMED",
                "--sun-misc-unsafe-memory-access=allow",
                "-Xlog:aot*=off",
                "-XX:AOTCache=" + home.resolve("baton.aot"),
                "-XX:+ExitOnOutOfMemoryError",
                "-Dorg.bytedeco.javacpp.pathsFirst=true",
                "-Dorg.bytedeco.javacpp.cachedir=/tmp/javacpp",
                "-Djava.library.path=" + unpacked.resolve("native"),
                "-Dbaton.home=" + home,
                "-cp",
                String.join(
                        ":",
                        jars.stream()
                                .map(jar -> home.resolve("lib").resolve(jar).toString())
                                .toList()));
    }

    private static void write(Path file, String text) throws IOException {
        Files.createDirectories(file.getParent());
        Files.writeString(file, text);
    }

    private static void copyTree(Path from, Path to) throws IOException {
        try (Stream<Path> files = Files.walk(from)) {
            for (Path file : files.toList()) {
                Path copy = to.resolve(from.relativize(file).toString());
                if (Files.isDirectory(file)) {
                    Files.createDirectories(copy);
                } else {
                    Files.copy(file, copy);
                }
            }
        }
    }

    private static void setTimes(Path layer) throws IOException {
        try (Stream<Path> files = Files.walk(layer)) {
            for (Path file : files.filter(Files::isRegularFile).toList()) {
                Files.setLastModifiedTime(file, TIME);
            }
        }
    }

    private static void delete(Path directory) throws IOException {
        if (!Files.exists(directory)) {
            return;
        }
        try (Stream<Path> files = Files.walk(directory)) {
            for (Path file : files.toList().reversed()) {
                Files.delete(file);
            }
        }
    }

    /** Runs a command with no other environment; returns its output. */
    private static String run(List<String> command, Map<String, String> environment)
            throws IOException, InterruptedException {
        Path said = Files.createTempFile("baton-image", ".log");
        try {
            ProcessBuilder builder =
                    new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(said.toFile());
            builder.environment().clear();
            builder.environment().putAll(environment);
            builder.environment()
                    .putAll(Map.of("PATH", "/usr/bin:/bin", "OPT_OUT_TRACKING", "true", "DJL_OFFLINE", "true"));
            Process process = builder.start();
            try {
                if (!process.waitFor(DEADLINE) || process.exitValue() != 0) {
                    throw new IOException("%s failed: %s".formatted(command, Files.readString(said)));
                }
            } finally {
                process.destroyForcibly();
            }
            return Files.readString(said);
        } finally {
            Files.delete(said);
        }
    }
}
