package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatCode;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.cli.Docs.Command;
import baton.kv.JsonFields;
import baton.kv.KvTransferConfig;
import baton.kv.connector.KvConnectors;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import picocli.CommandLine;

/** The pages for users: their links lead somewhere, and the program accepts their commands. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
class DocsTest {
    private final ServeCommand serve = new ServeCommand();
    /** One for all commands: it takes longer to make than to parse. */
    private final CommandLine program = Baton.commandLine(serve);

    @Test
    void linksLeadToFilesAndHeadings() {
        Map<String, String> pages = Docs.pages();
        List<String> broken = new ArrayList<>();
        pages.forEach((page, text) -> {
            for (String link : Docs.links(text)) {
                if (!link.matches("[a-z]+:.*") && !leadsSomewhere(pages, page, link)) {
                    broken.add(page + ": " + link);
                }
            }
        });
        assertThat(broken).isEmpty();
    }

    private static boolean leadsSomewhere(Map<String, String> pages, String page, String link) {
        int hash = link.indexOf('#');
        String file = hash < 0 ? link : link.substring(0, hash);
        Path target = file.isEmpty()
                ? Path.of(page)
                : Path.of("/" + page)
                        .resolveSibling(file)
                        .normalize()
                        .subpath(
                                0,
                                Path.of("/" + page)
                                        .resolveSibling(file)
                                        .normalize()
                                        .getNameCount());
        if (hash < 0) {
            return Files.exists(Program.ROOT.resolve(target));
        }
        String text = pages.get(target.toString());
        return text != null && Docs.anchors(text).contains(link.substring(hash + 1));
    }

    /** Every page can be reached from README.md. */
    @Test
    void everyPageIsLinked() {
        Map<String, String> pages = Docs.pages();
        Set<String> linked = new TreeSet<>(Set.of("README.md"));
        pages.forEach((page, text) -> {
            for (String link : Docs.links(text)) {
                if (!link.matches("[a-z]+:.*") && !link.startsWith("#")) {
                    linked.add(Path.of("/" + page)
                            .resolveSibling(link.split("#", 2)[0])
                            .normalize()
                            .toString()
                            .substring(1));
                }
            }
        });
        assertThat(linked).containsAll(pages.keySet());
    }

    static Stream<Command> commands() {
        return Docs.blocks().stream()
                .flatMap(block -> block.commands().stream())
                .filter(Command::isBaton);
    }

    @ParameterizedTest
    @MethodSource("commands")
    void theProgramTakesTheCommand(Command command) {
        String[] arguments = command.arguments().stream()
                // A command that says it goes on.
                .filter(each -> !each.equals("..."))
                .toArray(String[]::new);
        assertThatCode(() -> parse(arguments)).doesNotThrowAnyException();
    }

    /** Pages that show options without a command. */
    @Test
    void theProgramTakesOptionsOfConfigurations() {
        List<List<String>> options = Docs.blocks().stream()
                .flatMap(block -> block.commands().stream())
                .map(Command::words)
                .filter(words -> words.getFirst().startsWith("--kv-transfer-config"))
                .toList();
        assertThat(options).hasSizeGreaterThan(3);
        for (List<String> each : options) {
            List<String> arguments = new ArrayList<>(List.of("serve"));
            if (each.size() == 2 && each.getFirst().equals("--kv-transfer-config")) {
                arguments.addAll(each);
            } else {
                // A field by itself, of a configuration that is complete without it.
                arguments.addAll(List.of(
                        "--kv-transfer-config",
                        "{\"kv_connector\": \"SharedStorageConnector\", \"kv_role\": \"kv_both\"}",
                        each.get(0),
                        each.get(1)));
            }
            if (!each.getFirst().contains("list+")) {
                parse(arguments.toArray(String[]::new));
            }
        }
    }

    @Test
    void wrongCommandsAreFound() {
        assertThatThrownBy(() -> parse("serve", "--max-modle-len", "4")).hasMessageContaining("--max-modle-len");
        assertThatThrownBy(() -> parse("serve", "--kv-transfer-config", "{\"kv_conector\": \"X\"}"))
                .hasMessageContaining("kv_conector");
        assertThatThrownBy(
                        () -> parse(
                                "serve",
                                "--kv-transfer-config",
                                "{\"kv_connector\": \"NixlConnector\", \"kv_role\": \"kv_both\", \"kv_connector_extra_config\": {\"prot\": 1}}"))
                .hasMessageContaining("prot");
        assertThatThrownBy(() -> parse("bench", "nothing")).hasMessageContaining("nothing");
    }

    /** Parses a command line as the program does, without running the command. */
    private void parse(String... arguments) {
        program.parseArgs(Baton.withoutConfigs(serve, arguments));
        if (arguments.length > 0 && arguments[0].equals("serve")) {
            KvTransferConfig.fromArgs(List.of(arguments)).config().ifPresent(DocsTest::requireKnownSettings);
        }
    }

    /** The program only warns of these. */
    private static void requireKnownSettings(KvTransferConfig config) {
        if (config.modulePath().isPresent()) {
            return;
        }
        KvConnectors.find(config).ifPresent(connector -> {
            connector
                    .settingNames()
                    .ifPresent(known ->
                            assertThat(known).containsAll(config.extra().names()));
            for (JsonFields child : config.extra().objects("connectors").orElse(List.of())) {
                requireKnownSettings(KvTransferConfig.fromJson(JsonFields.of(
                        "",
                        child.toJson()
                                .put("kv_role", config.role().orElseThrow().configName()))));
            }
        });
    }
}
