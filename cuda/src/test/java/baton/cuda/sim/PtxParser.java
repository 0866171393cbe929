package baton.cuda.sim;

import baton.cuda.driver.CudaException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Takes the text of a module apart. The subset of PTX is that of Baton's kernels; all else is refused with its line. */
final class PtxParser {
    private static final int MAX_THREADS = 1024;
    private static final int SHARED_ALIGNMENT = 16;

    private static final String NAME = "[A-Za-z_$%][\\w$]*";
    private static final Pattern VERSION = Pattern.compile("\\.version\\s+(\\d+)\\.(\\d+)\\s");
    private static final Pattern TARGET = Pattern.compile("\\.target\\s+sm_(\\d+)\\s");
    private static final Pattern ADDRESS_SIZE = Pattern.compile("\\.address_size\\s+64\\s");
    private static final Pattern DYNAMIC = Pattern.compile(
            "\\.extern\\s+\\.shared\\s+\\.align\\s+(\\d+)\\s+\\.b8\\s+(" + NAME + ")\\s*\\[\\s*\\]\\s*;");
    private static final Pattern SHARED =
            Pattern.compile("\\.shared\\s+\\.align\\s+(\\d+)\\s+\\.b8\\s+(" + NAME + ")\\s*\\[\\s*(\\d+)\\s*\\]\\s*;");
    private static final Pattern ENTRY =
            Pattern.compile("(?:\\.visible\\s+)?\\.entry\\s+(" + NAME + ")\\s*\\(([^)]*)\\)\\s*([^{;]*)\\{");
    private static final Pattern PARAMETER = Pattern.compile("\\.param\\s+\\.([usbf]\\d+)\\s+(" + NAME + ")");
    private static final Pattern LIMIT = Pattern.compile("\\.maxntid\\s+(\\d+(?:\\s*,\\s*\\d+)*)\\s*");
    private static final Pattern REGISTERS = Pattern.compile("\\.reg\\s+\\.(\\w+)\\s+([^;]+);");
    private static final Pattern REGISTER = Pattern.compile("(" + NAME + ")(?:<(\\d+)>)?");
    private static final Pattern LABEL = Pattern.compile("(" + NAME + ")\\s*:");
    private static final Pattern INSTRUCTION =
            Pattern.compile("(?:@(!?)(" + NAME + ")\\s+)?([a-z][\\w.:]*)(?:\\s+([^;]*?))?\\s*;");
    private static final Set<String> REGISTER_TYPES = Set.of("pred", "b16", "b32", "f32", "b64");
    private static final Set<String> PARAMETER_TYPES = Set.of("u64", "u32", "f32");

    private static final Pattern END = Pattern.compile("}");

    private final String text;
    private int position;
    private int line = 1;
    /** The characters in which lines were counted. */
    private int counted;

    /** The last that was found. */
    private Matcher next;

    private String dynamic = "";

    private PtxParser(String module) {
        this.text = withoutComments(module);
        this.next = END.matcher(text);
    }

    /** The kernels by name. */
    static Map<String, KernelText> parse(String module) {
        return new PtxParser(module).module();
    }

    private static String withoutComments(String text) {
        return Pattern.compile("//[^\n]*|/\\*.*?\\*/", Pattern.DOTALL)
                .matcher(text)
                .replaceAll(comment -> comment.group().replaceAll("[^\n]", " "));
    }

    private Map<String, KernelText> module() {
        skip();
        if (!take(VERSION)) {
            throw refused("expected .version MAJOR.MINOR");
        }
        if (!take(TARGET)) {
            throw refused("expected .target sm_NN");
        }
        if (!take(ADDRESS_SIZE)) {
            throw refused("expected .address_size 64");
        }
        Map<String, KernelText> kernels = new LinkedHashMap<>();
        while (!atEnd()) {
            if (take(DYNAMIC)) {
                dynamic = next.group(2);
            } else if (take(ENTRY)) {
                KernelText kernel = kernel();
                if (kernels.put(kernel.name(), kernel) != null) {
                    throw refused("a second kernel of the name " + kernel.name());
                }
            } else {
                throw refused("expected .visible .entry NAME(...) {...} or .extern .shared .align N .b8 NAME[];");
            }
        }
        return kernels;
    }

    private KernelText kernel() {
        String name = next.group(1);
        Map<String, String> parameters = parameters(next.group(2));
        int maxThreads = maxThreads(next.group(3));
        Map<String, String> registers = new LinkedHashMap<>();
        Map<String, Integer> shared = new LinkedHashMap<>();
        int sharedBytes = 0;
        List<Statement> statements = new ArrayList<>();
        Map<String, Integer> labels = new LinkedHashMap<>();
        while (!take(END)) {
            if (take(REGISTERS)) {
                registers(next.group(1), next.group(2), registers);
            } else if (take(SHARED)) {
                int alignment = Integer.parseInt(next.group(1));
                sharedBytes = (sharedBytes + alignment - 1) / alignment * alignment;
                shared.put(next.group(2), sharedBytes);
                sharedBytes = Math.addExact(sharedBytes, Integer.parseInt(next.group(3)));
            } else if (take(LABEL)) {
                if (labels.put(next.group(1), statements.size()) != null) {
                    throw refused("a second label of the name " + next.group(1));
                }
            } else {
                int line = line();
                if (!take(INSTRUCTION)) {
                    throw refused("expected an instruction, a label, .reg, .shared .align N .b8 NAME[BYTES] or }");
                }
                statements.add(new Statement(
                        line,
                        next.group().replaceAll("\\s+", " "),
                        next.group(2) == null ? "" : next.group(2),
                        "!".equals(next.group(1)),
                        next.group(3),
                        operands(next.group(4) == null ? "" : next.group(4))));
            }
        }
        sharedBytes = (sharedBytes + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT;
        if (!dynamic.isEmpty()) {
            shared.put(dynamic, sharedBytes);
        }
        return new KernelText(name, parameters, maxThreads, shared, sharedBytes, registers, statements, labels);
    }

    private Map<String, String> parameters(String list) {
        Map<String, String> parameters = new LinkedHashMap<>();
        for (String parameter : list.isBlank() ? new String[0] : list.split(",", -1)) {
            Matcher matcher = PARAMETER.matcher(parameter.trim());
            if (!matcher.matches() || !PARAMETER_TYPES.contains(matcher.group(1))) {
                throw refused(
                        "the parameter `%s` is not .param of one of %s".formatted(parameter.trim(), PARAMETER_TYPES));
            }
            parameters.put(matcher.group(2), matcher.group(1));
        }
        return parameters;
    }

    private int maxThreads(String limits) {
        if (limits.isEmpty()) {
            return MAX_THREADS;
        }
        Matcher matcher = LIMIT.matcher(limits);
        if (!matcher.matches()) {
            throw refused("`%s` is not .maxntid".formatted(limits));
        }
        int threads = 1;
        for (String dimension : matcher.group(1).split("\\s*,\\s*", -1)) {
            threads *= Integer.parseInt(dimension);
        }
        return threads;
    }

    private void registers(String type, String names, Map<String, String> registers) {
        if (!REGISTER_TYPES.contains(type)) {
            throw refused("registers of ." + type);
        }
        for (String name : names.split("\\s*,\\s*", -1)) {
            Matcher matcher = REGISTER.matcher(name.trim());
            if (!matcher.matches()) {
                throw refused("`%s` is no register's name".formatted(name));
            }
            if (matcher.group(2) == null) {
                registers.put(matcher.group(1), type);
            } else {
                for (int i = 0; i < Integer.parseInt(matcher.group(2)); i++) {
                    registers.put(matcher.group(1) + i, type);
                }
            }
        }
    }

    /** Separated by commas outside of braces and brackets. */
    private static List<String> operands(String list) {
        List<String> operands = new ArrayList<>();
        int depth = 0;
        int start = 0;
        for (int i = 0; i < list.length(); i++) {
            char c = list.charAt(i);
            depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
            if (c == ',' && depth == 0) {
                operands.add(list.substring(start, i).trim());
                start = i + 1;
            }
        }
        if (!list.isBlank()) {
            operands.add(list.substring(start).trim());
        }
        return operands;
    }

    private boolean take(Pattern pattern) {
        Matcher matcher = pattern.matcher(text).region(position, text.length());
        if (!matcher.lookingAt()) {
            return false;
        }
        next = matcher;
        position = matcher.end();
        skip();
        return true;
    }

    private void skip() {
        while (!atEnd() && Character.isWhitespace(text.charAt(position))) {
            position++;
        }
    }

    private boolean atEnd() {
        return position == text.length();
    }

    private int line() {
        for (; counted < position; counted++) {
            line += text.charAt(counted) == '\n' ? 1 : 0;
        }
        return line;
    }

    private CudaException refused(String reason) {
        int end = text.indexOf('\n', position);
        String rest = text.substring(position, end < 0 ? text.length() : end);
        return Statement.refused(line(), rest.strip(), reason);
    }
}
