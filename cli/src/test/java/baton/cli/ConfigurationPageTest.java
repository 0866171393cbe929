package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.KvTransferConfig;
import baton.kv.Setting;
import baton.kv.connector.KvConnector;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.ServiceLoader;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.node.ObjectNode;

/** docs/configuration.md agrees with the code. */
class ConfigurationPageTest {
    private static final Path PAGE = Program.ROOT.resolve("docs", "configuration.md");
    private static final String COMMAND =
            "mvn -pl cli -am -Dsurefire.failIfNoSpecifiedTests=false -Dtest=ConfigurationPageTest -Dtests.write=true package";

    /** A quoted name of a variable of Baton, or of software that it works with. */
    private static final Pattern VARIABLE = Pattern.compile(
            "\"((?:BATON|VLLM|LMCACHE|MOONCAKE|OTEL|OPENAI|NIXL|UCX|ONEDNN|ATEN)_[A-Z0-9_]*[A-Z0-9]|PYTHONHASHSEED)\"");

    private static final Pattern LAUNCHER_VARIABLE = Pattern.compile("\\$\\{(BATON_[A-Z_]+)");
    private static final Pattern PROPERTY = Pattern.compile("\"(baton\\.[a-z.]+)\"");

    @Test
    void thePageAgreesWithTheCode() throws IOException {
        String text = ConfigurationPage.text(COMMAND);
        if (Boolean.getBoolean("tests.write")) {
            Files.writeString(PAGE, text);
        }
        assertThat(Files.exists(PAGE) ? Files.readString(PAGE) : "")
                .as("docs/configuration.md; this writes it anew: %s", COMMAND)
                .isEqualTo(text);
    }

    @Test
    void variablesAndPropertiesAreThoseThatTheCodeReads() throws IOException {
        Set<String> variables = new TreeSet<>(find(LAUNCHER_VARIABLE, Files.readString(Program.ROOT.resolve("baton"))));
        Set<String> properties = new TreeSet<>();
        for (String source : sources()) {
            variables.addAll(find(VARIABLE, source));
            if (source.contains("System.getProperty(")) {
                properties.addAll(find(PROPERTY, source));
            }
        }
        assertThat(ConfigurationPage.VARIABLES.keySet()).isEqualTo(variables);
        assertThat(ConfigurationPage.PROPERTIES.keySet()).isEqualTo(properties);
    }

    @Test
    void connectorsDeclareTheirSettings() {
        List<KvConnector> connectors = ServiceLoader.load(KvConnector.class).stream()
                .map(ServiceLoader.Provider::get)
                .toList();
        assertThat(connectors).hasSizeGreaterThan(8).allSatisfy(connector -> {
            assertThat(connector.settings()).as("%s", connector.names()).isNotEmpty();
            assertThat(connector.settings().stream().map(Setting::name))
                    .as("%s", connector.names())
                    .doesNotHaveDuplicates();
        });
    }

    /** Defaults that are written in two places. */
    @Test
    void defaultsOfTheTransferConfiguration() {
        ObjectNode defaults = KvTransferConfig.none().toJson();
        for (Setting field : KvTransferConfig.FIELDS) {
            field.value()
                    .ifPresent(value -> assertThat(defaults.get(field.name()))
                            .as(field.name())
                            .hasToString(value.toString()));
        }
    }

    private static Set<String> find(Pattern pattern, String text) {
        Set<String> found = new TreeSet<>();
        Matcher matcher = pattern.matcher(text);
        while (matcher.find()) {
            found.add(matcher.group(1));
        }
        return found;
    }

    /** Main code of all modules. */
    static List<String> sources() throws IOException {
        try (Stream<Path> modules = Files.list(Program.ROOT)) {
            // The test kit's variables are for tests, which docs/house.md lists.
            return modules.filter(module -> !module.endsWith("testkit"))
                    .map(module -> module.resolve("src", "main", "java"))
                    .filter(Files::isDirectory)
                    .flatMap(ConfigurationPageTest::files)
                    .toList();
        }
    }

    private static Stream<String> files(Path directory) {
        try (Stream<Path> files = Files.walk(directory)) {
            return files
                    .filter(file -> file.toString().endsWith(".java"))
                    .map(file -> {
                        try {
                            return Files.readString(file);
                        } catch (IOException e) {
                            throw new UncheckedIOException(e);
                        }
                    })
                    .toList()
                    .stream();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
