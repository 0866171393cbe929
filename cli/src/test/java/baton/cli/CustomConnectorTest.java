package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.Ledgers.Case;
import java.io.IOException;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.jar.JarEntry;
import java.util.jar.JarOutputStream;
import java.util.stream.Stream;
import javax.tools.JavaCompiler;
import javax.tools.StandardJavaFileManager;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The connector in {@code examples/custom-connector}, compiled, packed and served with. */
class CustomConnectorTest {
    private static final int BLOCK = 16;
    private static final int MAX_TOKENS = 20;
    private static final Path PROJECT = Program.ROOT.resolve("examples", "custom-connector", "src", "main");

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    /** The jar that {@code mvn package} makes of the project. */
    private static Path jar() throws IOException {
        Path classes = INSTANCES.directory("classes");
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        StringWriter said = new StringWriter();
        try (StandardJavaFileManager files = compiler.getStandardFileManager(null, null, null)) {
            List<String> options = List.of(
                    "-d",
                    classes.toString(),
                    "-classpath",
                    System.getProperty("java.class.path"),
                    "-proc:none",
                    "-Xlint:all,-path,-classfile",
                    "-Werror");
            boolean compiled = compiler.getTask(
                            said, files, null, options, null, files.getJavaFileObjectsFromPaths(sources()))
                    .call();
            assertThat(compiled).as("%s", said).isTrue();
        }
        Path jar = classes.resolveSibling("custom-connector.jar");
        try (JarOutputStream out = new JarOutputStream(Files.newOutputStream(jar))) {
            pack(out, classes);
            pack(out, PROJECT.resolve("resources"));
        }
        return jar;
    }

    private static List<Path> sources() throws IOException {
        try (Stream<Path> files = Files.walk(PROJECT.resolve("java"))) {
            return files.filter(file -> file.toString().endsWith(".java")).toList();
        }
    }

    private static void pack(JarOutputStream out, Path directory) throws IOException {
        try (Stream<Path> walk = Files.walk(directory)) {
            for (Path file : walk.filter(Files::isRegularFile).toList()) {
                out.putNextEntry(new JarEntry(directory.relativize(file).toString()));
                out.write(Files.readAllBytes(file));
            }
        }
    }

    @Test
    void theExampleOfAConnectorHandsPromptsOverFromItsJar() throws Exception {
        Path jar = jar();
        Path shared = INSTANCES.directory("kv-blocks");
        Instance prefill = serve("prefill", "kv_producer", jar, shared);
        Instance decode = serve("decode", "kv_consumer", jar, shared);
        Case asked = Ledgers.named("recall-260");
        assertThat(prefill.complete(asked.prompt(), 1).status()).isEqualTo(200);

        Prompts before = decode.prompts();
        assertThat(decode.complete(asked.prompt(), MAX_TOKENS).tokenIds()).isEqualTo(asked.answer());
        int aligned = asked.aligned(BLOCK);
        assertThat(decode.prompts().since(before)).isEqualTo(new Prompts(asked.prompt().length - aligned, 0, aligned));
        assertThat((int) decode.metric("directory_connector:loaded_blocks_total", ""))
                .isEqualTo(aligned / BLOCK);
    }

    private static Instance serve(String name, String role, Path jar, Path shared) throws IOException {
        return INSTANCES.serve(
                name, "--dtype", "float32", "--no-enable-prefix-caching", "--kv-transfer-config", """
                {"kv_connector": "DirectoryConnector", "kv_connector_module_path": "%s", "kv_role": "%s",
                 "kv_connector_extra_config": {"directory": "%s"}}
                """.formatted(
                                jar, role, shared));
    }
}
