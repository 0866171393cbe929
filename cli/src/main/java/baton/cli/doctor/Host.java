package baton.cli.doctor;

import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;

/**
 * Where the machine is read from.
 *
 * @param root under which {@code /proc}, {@code /sys}, {@code /dev} and libraries are looked for
 * @param environment of this process
 * @param processors that this process may use
 */
public record Host(Path root, Map<String, String> environment, int processors) {
    public Host {
        environment = Map.copyOf(environment);
    }

    /** The one that this process runs on. */
    public static Host here() {
        return new Host(Path.of("/"), System.getenv(), Runtime.getRuntime().availableProcessors());
    }

    /** @param path absolute, of a file or a directory */
    Path at(String path) {
        return root.resolve(path.substring(1));
    }

    /** A file's text without surrounding white space; empty if it cannot be read. */
    Optional<String> text(String path) {
        try {
            return Optional.of(Files.readString(at(path)).strip());
        } catch (IOException | UncheckedIOException _) {
            return Optional.empty();
        }
    }

    /** A file's lines; none if it cannot be read. */
    List<String> lines(String path) {
        return text(path).map(text -> text.lines().toList()).orElse(List.of());
    }

    /** Names in a directory that match a glob, in order; none if it cannot be listed. */
    List<String> names(String directory, String glob) {
        List<String> names = new ArrayList<>();
        try (DirectoryStream<Path> entries = Files.newDirectoryStream(at(directory), glob)) {
            entries.forEach(entry -> names.add(entry.getFileName().toString()));
        } catch (IOException | RuntimeException _) {
            return List.of();
        }
        return names.stream().sorted().toList();
    }

    /** An executable on the {@code PATH}. */
    Optional<Path> program(String name) {
        return Stream.of(environment.getOrDefault("PATH", "").split(File.pathSeparator))
                .filter(directory -> directory.startsWith("/"))
                .map(directory -> at(directory).resolve(name))
                .filter(Files::isExecutable)
                .findFirst();
    }

    /** Where a shared library lies, among the loader's usual directories. It is not loaded. */
    Optional<Path> library(String file) {
        return Stream.concat(
                        Stream.of(
                                environment.getOrDefault("LD_LIBRARY_PATH", "").split(File.pathSeparator)),
                        Stream.of(
                                "/usr/local/lib",
                                "/lib/x86_64-linux-gnu",
                                "/usr/lib/x86_64-linux-gnu",
                                "/lib64",
                                "/usr/lib64",
                                "/lib",
                                "/usr/lib",
                                "/usr/local/cuda/lib64",
                                "/opt/ucx/lib"))
                .filter(directory -> directory.startsWith("/"))
                .map(directory -> at(directory).resolve(file))
                .filter(Files::exists)
                .findFirst();
    }
}
