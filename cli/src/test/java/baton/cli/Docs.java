package baton.cli;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** The pages for users, README.md and those in docs/, as their tests read them. */
final class Docs {
    private static final Pattern HEADING = Pattern.compile("#{1,6} +(.*)");
    private static final Pattern LINK = Pattern.compile("!?\\[((?:[^\\[\\]]|\\[[^\\]]*\\])*)\\]\\(([^()\\s]+)\\)");
    private static final Pattern ASSIGNMENT = Pattern.compile("[A-Z][A-Z0-9_]*=.*");

    private Docs() {}

    /** All pages, by their paths from the root. */
    static Map<String, String> pages() {
        Map<String, String> pages = new TreeMap<>();
        try (Stream<Path> files = Files.walk(Program.ROOT.resolve("docs"))) {
            List<Path> all = new ArrayList<>(
                    files.filter(file -> file.toString().endsWith(".md")).toList());
            all.add(Program.ROOT.resolve("README.md"));
            for (Path file : all) {
                pages.put(Program.ROOT.relativize(file).toString(), Files.readString(file));
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return pages;
    }

    /** The text of a page that is there. */
    static String page(String path) {
        return Objects.requireNonNull(pages().get(path), path);
    }

    /**
     * The text between two lines of three backticks.
     *
     * @param place the page, and the line that it begins after
     * @param section the page, and the heading above
     * @param language behind the backticks; empty for commands, and for much else
     */
    record Block(String place, String section, String language, String text) {
        /** The lines as a shell reads them; undefined for text that is no command, such as output. */
        List<Line> lines() {
            return language.isEmpty()
                    ? Docs.lines(text).stream()
                            .map(line -> new Line(line, Docs.commands(place, line)))
                            .toList()
                    : List.of();
        }

        List<Command> commands() {
            return lines().stream().flatMap(line -> line.commands().stream()).toList();
        }
    }

    /** The text that a shell reads at once, without comments behind {@code #}, and the commands in it. */
    record Line(String text, List<Command> commands) {}

    /** A command, as a shell splits it: variables that are set for it, and its words. */
    record Command(String place, List<String> variables, List<String> words) {
        /** The first word. */
        String program() {
            return words.getFirst();
        }

        boolean isBaton() {
            return program().equals("./baton") || program().endsWith("/bin/baton");
        }

        List<String> arguments() {
            return words.subList(1, words.size());
        }

        @Override
        public String toString() {
            return place + ": " + String.join(" ", words);
        }
    }

    static List<Block> blocks() {
        List<Block> blocks = new ArrayList<>();
        pages().forEach((page, text) -> {
            String[] lines = text.split("\n", -1);
            String section = page;
            for (int i = 0; i < lines.length; i++) {
                if (lines[i].startsWith("#")) {
                    section = page + ": " + lines[i].replaceFirst("^#+ ", "");
                } else if (lines[i].startsWith("```")) {
                    int start = i;
                    StringBuilder inside = new StringBuilder();
                    for (i++; i < lines.length && !lines[i].startsWith("```"); i++) {
                        inside.append(lines[i]).append('\n');
                    }
                    blocks.add(new Block(
                            page + ":" + (start + 1),
                            section,
                            lines[start].substring(3).strip(),
                            inside.toString()));
                }
            }
        });
        return blocks;
    }

    /** A page without its code. */
    private static String prose(String page) {
        return page.replaceAll("(?ms)^```.*?^```", "").replaceAll("`[^`\n]*`", "code");
    }

    /** Targets of the links of a page. */
    static Set<String> links(String page) {
        Set<String> links = new TreeSet<>();
        Matcher link = LINK.matcher(prose(page));
        while (link.find()) {
            links.add(link.group(2));
            // A picture that is a link.
            links.addAll(links(link.group(1)));
        }
        return links;
    }

    /** Anchors of a page's headings, as GitHub makes them. */
    static Set<String> anchors(String page) {
        Set<String> anchors = new TreeSet<>();
        Map<String, Integer> times = new HashMap<>();
        for (String line : page.replaceAll("(?ms)^```.*?^```", "").split("\n")) {
            Matcher heading = HEADING.matcher(line);
            if (heading.matches()) {
                String anchor = heading.group(1)
                        .replaceAll("\\[([^\\]]*)\\]\\([^)]*\\)", "$1")
                        .strip()
                        .toLowerCase(Locale.ROOT)
                        .replaceAll("[^\\p{L}\\p{N}_\\- ]", "")
                        .replace(' ', '-');
                int before = times.merge(anchor, 1, Integer::sum) - 1;
                anchors.add(before == 0 ? anchor : anchor + "-" + before);
            }
        }
        return anchors;
    }

    /** Where quotes are open, a line goes on; so it does behind a backslash. */
    private static List<String> lines(String text) {
        List<String> lines = new ArrayList<>();
        StringBuilder line = new StringBuilder();
        char quote = 0;
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            boolean starts = line.isEmpty() || Character.isWhitespace(line.charAt(line.length() - 1));
            if (quote == 0 && c == '#' && starts) {
                i = text.indexOf('\n', i) - 1;
            } else if (quote == 0 && c == '\\' && text.startsWith("\n", i + 1)) {
                i++;
            } else if (quote == 0 && c == '\n') {
                lines.add(line.toString().strip());
                line.setLength(0);
            } else {
                if (c == quote) {
                    quote = 0;
                } else if (quote == 0 && (c == '\'' || c == '"')) {
                    quote = c;
                }
                line.append(c);
            }
        }
        lines.removeIf(String::isEmpty);
        return lines;
    }

    /** Splits a line as a shell does: quotes, escapes, and separators of commands. Nothing is expanded. */
    static List<Command> commands(String place, String line) {
        List<Command> commands = new ArrayList<>();
        List<String> words = new ArrayList<>();
        StringBuilder word = new StringBuilder();
        boolean inWord = false;
        char quote = 0;
        for (int i = 0; i <= line.length(); i++) {
            char c = i == line.length() ? ';' : line.charAt(i);
            if (quote != 0 && i < line.length()) {
                if (c == quote) {
                    quote = 0;
                } else {
                    word.append(c);
                }
            } else if (c == '\'' || c == '"') {
                quote = c;
                inWord = true;
            } else if (c == '\\') {
                i++;
                word.append(line.charAt(i));
                inWord = true;
            } else if (Character.isWhitespace(c) || ";&|".indexOf(c) >= 0) {
                if (inWord) {
                    words.add(word.toString());
                    word.setLength(0);
                    inWord = false;
                }
                if (";&|".indexOf(c) >= 0) {
                    add(commands, place, words);
                    words = new ArrayList<>();
                }
            } else {
                word.append(c);
                inWord = true;
            }
        }
        return commands;
    }

    private static void add(List<Command> commands, String place, List<String> words) {
        List<String> variables = words.stream()
                .takeWhile(each -> ASSIGNMENT.matcher(each).matches())
                .toList();
        List<String> rest = words.subList(variables.size(), words.size());
        if (!rest.isEmpty()) {
            commands.add(new Command(place, variables, List.copyOf(rest)));
        }
    }
}
