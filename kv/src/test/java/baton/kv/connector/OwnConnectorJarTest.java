package baton.kv.connector;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import java.io.IOException;
import java.io.StringWriter;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.jar.JarEntry;
import java.util.jar.JarOutputStream;
import java.util.stream.Stream;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Connectors in jars, made by the real compiler. */
class OwnConnectorJarTest {
    private static final String BODY = """
            public java.util.Set<String> names() { return java.util.Set.of("Mine"); }
            public SchedulerConnector scheduler(ConnectorContext context) { return %s; }
            public WorkerConnector worker(ConnectorContext context, Rank rank) { return null; }
            """;

    @TempDir
    Path directory;

    private static JavaFileObject source(String name, String code) {
        return new SimpleJavaFileObject(
                URI.create("string:///" + name.replace('.', '/') + ".java"), JavaFileObject.Kind.SOURCE) {
            @Override
            public CharSequence getCharContent(boolean ignoreEncodingErrors) {
                return code;
            }
        };
    }

    /** @param services the lines of the jar's list of connectors */
    private Path jar(String services, JavaFileObject... sources) throws IOException {
        Path classes = Files.createTempDirectory(directory, "classes");
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        StringWriter said = new StringWriter();
        List<String> options =
                List.of("-d", classes.toString(), "-classpath", System.getProperty("java.class.path"), "-proc:none");
        assertThat(compiler.getTask(said, null, null, options, null, List.of(sources))
                        .call())
                .as("%s", said)
                .isTrue();
        Path jar = Files.createTempFile(directory, "connector", ".jar");
        try (JarOutputStream out = new JarOutputStream(Files.newOutputStream(jar));
                Stream<Path> files = Files.walk(classes)) {
            if (!services.isEmpty()) {
                out.putNextEntry(new JarEntry("META-INF/services/baton.kv.connector.KvConnector"));
                out.write(services.getBytes(StandardCharsets.UTF_8));
            }
            for (Path file : new ArrayList<>(files.filter(Files::isRegularFile).toList())) {
                // Interfaces that play another version of Baton's own stay out.
                if (!file.startsWith(classes.resolve("baton"))) {
                    out.putNextEntry(new JarEntry(classes.relativize(file).toString()));
                    out.write(Files.readAllBytes(file));
                }
            }
        }
        return jar;
    }

    private Path mine(String services, String body) throws IOException {
        return jar(services, source("com.example.Mine", """
                package com.example;
                import baton.kv.connector.*;
                public class Mine implements KvConnector {
                    %s
                }
                """.formatted(body)));
    }

    private static KvConnector find(Path jar, String name) {
        return KvConnectors.find(KvTransferConfig.builder(name, KvRole.BOTH)
                        .modulePath(jar.toString())
                        .build())
                .orElseThrow();
    }

    private static void assertRefused(Path jar, String name, String... message) {
        assertThatThrownBy(() -> find(jar, name))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll(message);
    }

    @Test
    void aClassOfAJarIsFoundByItsWholeNameOrTheNameThatTheJarGives() throws IOException {
        String body = BODY.formatted("null");
        Path jar = mine("# connectors\ncom.example.Mine # the only one\n", body);
        assertThat(find(jar, "com.example.Mine").names()).containsExactly("Mine");
        assertThat(find(jar, "Mine").names()).containsExactly("Mine");
        assertRefused(jar, "Other", "kv_connector: Class Other not found in " + jar, "names [com.example.Mine]");
        Path silent = mine("", body);
        assertThat(find(silent, "com.example.Mine").names()).containsExactly("Mine");
        assertRefused(silent, "Mine", "kv_connector: Class Mine not found in " + silent);
    }

    @Test
    void aJarThatCannotBeReadIsRefused() throws IOException {
        assertRefused(
                directory.resolve("none.jar"),
                "Mine",
                "kv_connector_module_path: is " + directory.resolve("none.jar"),
                "not a file that can be read");
        Path text = Files.writeString(directory.resolve("text.jar"), "no archive");
        assertRefused(text, "Mine", "kv_connector_module_path: is " + text, "cannot be read as a jar");
    }

    @Test
    void aClassThatDoesNotFitSaysWhy() throws IOException {
        Path other = jar("", source("com.example.Mine", "package com.example; public class Mine {}"));
        assertRefused(other, "com.example.Mine", "class com.example.Mine does not implement");
        Path parameters = mine("", "public Mine(String text) {}" + BODY.formatted("null"));
        assertRefused(parameters, "com.example.Mine", "needs a public constructor without parameters");
        Path failing = mine("", "public Mine() { throw new IllegalStateException(\"no\"); }" + BODY.formatted("null"));
        assertRefused(failing, "com.example.Mine", "constructor of com.example.Mine failed: java.lang.IllegalState");
        KvConnector none = find(mine("", BODY.formatted("null")), "com.example.Mine");
        assertThatThrownBy(() -> none.scheduler(context()))
                .hasMessage("kv_connector: class com.example.Mine returned null for its SchedulerConnector");
    }

    /** The interface that it was compiled against had other methods. */
    @Test
    void aClassOfAnotherVersionOfTheInterfacesSaysSoBeforeTheFirstRequest() throws IOException {
        JavaFileObject earlier = source("baton.kv.connector.SchedulerConnector", """
                package baton.kv.connector;
                public interface SchedulerConnector { void close(); }
                """);
        Path lacking = jar("", earlier, source("com.example.Mine", """
                package com.example;
                import baton.kv.connector.*;
                public class Mine implements KvConnector {
                    %s
                    public static class Sched implements SchedulerConnector { public void close() {} }
                }
                """.formatted(BODY.formatted("new Sched()"))));
        KvConnector lacks = find(lacking, "com.example.Mine");
        assertThatThrownBy(() -> lacks.scheduler(context()))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(
                        "kv_connector: class com.example.Mine does not fit this version of Baton or of Java:"
                                + " java.lang.AbstractMethodError: com.example.Mine$Sched has no method ")
                .hasMessageContaining("SchedulerConnector");

        JavaFileObject later = source("baton.kv.connector.ConnectorContext", """
                package baton.kv.connector;
                public record ConnectorContext() { public int novelty() { return 1; } }
                """);
        Path using = jar("", later, source("com.example.Mine", """
                package com.example;
                import baton.kv.connector.*;
                public class Mine implements KvConnector {
                    %s
                }
                """.formatted(
                        BODY.formatted("context.novelty() == 1 ? null : null"))));
        KvConnector uses = find(using, "com.example.Mine");
        assertThatThrownBy(() -> uses.scheduler(context()))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll("NoSuchMethodError", "novelty", "Compile it against this version's module kv");
    }

    private static ConnectorContext context() {
        return new ConnectorContext(
                KvTransferConfig.none(),
                new ModelFingerprint("fake", "00"),
                new KvLayout(1, 1, 4, 4, DType.F32),
                () -> 0);
    }
}
