package baton.cli;

import static java.util.stream.Collectors.joining;
import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;
import javax.xml.parsers.DocumentBuilderFactory;
import javax.xml.parsers.ParserConfigurationException;
import org.junit.jupiter.api.Test;
import org.w3c.dom.Document;
import org.w3c.dom.Element;
import org.w3c.dom.Node;
import org.w3c.dom.NodeList;
import org.xml.sax.SAXException;

/**
 * Prints the tests that a build has skipped and the reasons, over all modules. Surefire runs it in the phase {@code verify} of the
 * last module only.
 */
class SkipReport {
    /** Begins the message of an assumption that no installation fulfils. */
    private static final String INAPPLICABLE = "does not apply: ";

    private static final String ABORTED = "org.opentest4j.TestAbortedException: ";

    @Test
    void everySkippedTestNamesItsMissingRequirement() throws IOException {
        Path root = Path.of(System.getProperty("baton.root", ".."));
        Instant start = Instant.parse(System.getProperty("baton.build.start", Instant.EPOCH.toString()));
        List<Skip> skips = skips(root, start);
        System.out.print(text(skips));
        assertThat(skips)
                .as("each skipped test has a message that names the missing requirement")
                .noneMatch(skip -> skip.reason().isBlank()
                        || skip.reason().startsWith("assumption is not")
                        || skip.reason().contains("Expecting"));
    }

    /** A test that was skipped. */
    record Skip(String module, String test, String reason) {}

    /** The skipped tests of the reports written since {@code start}. */
    static List<Skip> skips(Path root, Instant start) throws IOException {
        List<Skip> skips = new ArrayList<>();
        for (Path report : reports(root)) {
            if (Files.getLastModifiedTime(report).toInstant().isBefore(start)) {
                continue;
            }
            String module = root.relativize(report).getName(0).toString();
            NodeList all = parsed(report).getElementsByTagName("skipped");
            for (int i = 0; i < all.getLength(); i++) {
                if (all.item(i) instanceof Element skipped && skipped.getParentNode() instanceof Element test) {
                    String name = test.getAttribute("classname");
                    skips.add(new Skip(module, name.substring(name.lastIndexOf('.') + 1), reason(skipped)));
                }
            }
        }
        return skips;
    }

    private static List<Path> reports(Path root) throws IOException {
        List<Path> reports = new ArrayList<>();
        try (Stream<Path> modules = Files.list(root)) {
            for (Path module : modules.sorted().toList()) {
                Path directory = module.resolve("target").resolve("surefire-reports");
                if (Files.isDirectory(directory)) {
                    try (Stream<Path> files = Files.list(directory)) {
                        files.filter(file -> file.getFileName().toString().matches("TEST-.*\\.xml"))
                                .sorted()
                                .forEach(reports::add);
                    }
                }
            }
        }
        return reports;
    }

    private static Document parsed(Path report) throws IOException {
        try {
            return DocumentBuilderFactory.newDefaultInstance()
                    .newDocumentBuilder()
                    .parse(report.toFile());
        } catch (SAXException | ParserConfigurationException e) {
            throw new IOException(report + " is no report of Surefire: " + e.getMessage(), e);
        }
    }

    /** A condition's is an attribute; an assumption's is the first line of its stack trace. */
    private static String reason(Element skipped) {
        Node text = skipped.getFirstChild();
        String reason = text == null ? skipped.getAttribute("message") : text.getNodeValue();
        int trace = reason.indexOf("\n\tat ");
        return (trace < 0 ? reason : reason.substring(0, trace))
                .replace(ABORTED, "")
                .replace("Assumption failed: ", "")
                .strip();
    }

    static String text(List<Skip> skips) {
        // Reason, then module and class.
        Map<String, Map<String, Integer>> byReason = new TreeMap<>();
        long inapplicable = 0;
        for (Skip skip : skips) {
            if (skip.reason().startsWith(INAPPLICABLE)) {
                inapplicable++;
            } else {
                byReason.computeIfAbsent(skip.reason(), _ -> new TreeMap<>())
                        .merge(skip.module() + " " + skip.test(), 1, Integer::sum);
            }
        }
        StringBuilder text =
                new StringBuilder("Skipped: %d tests. Missing here:%n".formatted(skips.size() - inapplicable));
        byReason.forEach((reason, tests) -> text.append("- %s%n    %s%n"
                .formatted(
                        reason.replaceAll("\\s+", " "),
                        tests.entrySet().stream()
                                .map(test -> test.getKey() + (test.getValue() == 1 ? "" : " (" + test.getValue() + ")"))
                                .collect(joining(", ")))));
        if (inapplicable > 0) {
            text.append(
                    "%d more do not apply to their store, agent, connector or processor.%n".formatted(inapplicable));
        }
        return text.append("Tests tagged thorough, peers, fleets and soak run in the profiles of these names only.%n"
                        .formatted())
                .toString();
    }
}
