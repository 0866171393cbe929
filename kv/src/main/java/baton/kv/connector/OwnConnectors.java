package baton.kv.connector;

import baton.kv.ConfigException;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.lang.reflect.InvocationTargetException;
import java.net.MalformedURLException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.jar.JarFile;
import java.util.zip.ZipEntry;

/** Loads a connector of a user's own: from a package on the class path, or from a jar. */
final class OwnConnectors {
    private static final String CONNECTOR = "kv_connector";
    private static final String MODULE_PATH = "kv_connector_module_path";
    private static final String SERVICES = "META-INF/services/" + KvConnector.class.getName();

    private OwnConnectors() {}

    /**
     * @param path the package, or the path of a jar, which ends with {@code .jar}
     * @param name of the class; of a jar's class with its package, unless the jar names it as a provider of {@link KvConnector}
     * @throws ConfigException if there is no such class, or it cannot be used
     */
    static KvConnector load(String path, String name) {
        if (!path.endsWith(".jar")) {
            return make(Thread.currentThread().getContextClassLoader(), path + "." + name, name, path);
        }
        Path jar = jar(path);
        List<String> named = named(jar);
        String className = named.stream()
                .filter(each -> each.equals(name) || each.endsWith("." + name) || each.endsWith("$" + name))
                .findFirst()
                .orElse(name);
        try {
            // Open for as long as the process lives: the connector's classes are loaded as they are used.
            URLClassLoader loader = new URLClassLoader(
                    "kv_connector", new URL[] {jar.toUri().toURL()}, KvConnector.class.getClassLoader());
            return make(loader, className, name, path + (named.isEmpty() ? "" : ", which names " + named));
        } catch (MalformedURLException e) {
            throw new ConfigException(MODULE_PATH, "is " + path + ", which is not a path: " + e.getMessage(), e);
        }
    }

    private static Path jar(String path) {
        Path jar = ConfigException.path(MODULE_PATH, path).toAbsolutePath();
        if (!Files.isRegularFile(jar) || !Files.isReadable(jar)) {
            throw new ConfigException(MODULE_PATH, "is " + path + ", which is not a file that can be read");
        }
        return jar;
    }

    /** The classes that a jar names as connectors. */
    private static List<String> named(Path jar) {
        try (JarFile file = new JarFile(jar.toFile())) {
            ZipEntry services = file.getEntry(SERVICES);
            if (services == null) {
                return List.of();
            }
            try (InputStream in = file.getInputStream(services)) {
                return new String(in.readAllBytes(), StandardCharsets.UTF_8)
                        .lines()
                        .map(line -> line.replaceFirst("#.*", "").strip())
                        .filter(line -> !line.isEmpty())
                        .toList();
            }
        } catch (IOException | UncheckedIOException e) {
            throw new ConfigException(
                    MODULE_PATH, "is " + jar + ", which cannot be read as a jar: " + e.getMessage(), e);
        }
    }

    private static KvConnector make(ClassLoader loader, String className, String name, String where) {
        try {
            Class<?> type = Class.forName(className, true, loader);
            if (!KvConnector.class.isAssignableFrom(type)) {
                throw new ConfigException(
                        CONNECTOR, "class " + className + " does not implement " + KvConnector.class.getName());
            }
            return new OwnConnector(
                    className, (KvConnector) type.getConstructor().newInstance());
        } catch (ClassNotFoundException e) {
            throw new ConfigException(CONNECTOR, "Class " + name + " not found in " + where, e);
        } catch (NoSuchMethodException | IllegalAccessException | InstantiationException e) {
            throw new ConfigException(
                    CONNECTOR, "class " + className + " needs a public constructor without parameters", e);
        } catch (InvocationTargetException e) {
            if (e.getCause() instanceof LinkageError error) {
                throw notThisApi(className, error);
            }
            throw new ConfigException(CONNECTOR, "the constructor of " + className + " failed: " + e.getCause(), e);
        } catch (LinkageError e) {
            throw notThisApi(className, e);
        }
    }

    /** Why a class cannot be linked. */
    static ConfigException notThisApi(String className, LinkageError e) {
        String why = Optional.ofNullable(e.getCause()).map(Throwable::toString).orElseGet(e::toString);
        return new ConfigException(
                CONNECTOR,
                e instanceof ExceptionInInitializerError
                        ? "class " + className + " does not load: " + why
                        : "class " + className + " does not fit this version of Baton or of Java: " + why
                                + ". Compile it against this version's module kv, and put its other libraries into its jar",
                e);
    }
}
