package baton.cli.doctor;

import baton.memory.Processor;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * The findings.
 *
 * @param model needs and speed of an instance of the model
 * @param machine features of the machine and its operating system
 * @param software libraries
 * @param choices of Baton
 */
public record Examination(List<Finding> model, List<Finding> machine, List<Finding> software, List<Finding> choices) {
    public Examination {
        model = List.copyOf(model);
        machine = List.copyOf(machine);
        software = List.copyOf(software);
        choices = List.copyOf(choices);
    }

    /**
     * Looks at a host. Libraries are loaded into this process.
     *
     * @param model a checkpoint's directory or a GGUF file
     */
    public static Examination of(Host host, Path model) {
        boolean rdma = !host.names("/sys/class/infiniband", "*").isEmpty();
        boolean nvidia = host.text("/proc/driver/nvidia/version").isPresent();
        HostResources resources = new HostResources(host);
        ModelFindings ofModel = ModelFindings.of(model, resources.availableMemory());
        Choices choices = Choices.of(ofModel.config(), host.processors());
        return new Examination(
                ofModel.findings(),
                resources.findings(Processor.current()),
                new Software(host.environment(), rdma, nvidia, choices.loadsLibTorch()).findings(),
                choices.findings());
    }

    /** Whether Baton can run. */
    public boolean isRunnable() {
        return all().stream().noneMatch(finding -> finding.level() == Finding.Level.BROKEN);
    }

    private List<Finding> all() {
        List<Finding> all = new ArrayList<>(model);
        all.addAll(machine);
        all.addAll(software);
        all.addAll(choices);
        return all;
    }

    /** The report: a line for each finding, and below it the advice. */
    public List<String> lines() {
        int width = all().stream()
                .mapToInt(finding -> finding.name().length())
                .max()
                .orElse(0);
        List<String> lines = new ArrayList<>();
        for (Map.Entry<String, List<Finding>> section : sections()) {
            if (!lines.isEmpty()) {
                lines.add("");
            }
            lines.add(section.getKey());
            for (Finding finding : section.getValue()) {
                lines.add("  %s %s".formatted(padded(finding.name(), width), finding.found()));
                finding.advice()
                        .ifPresent(advice -> lines.add("  %s %s %s"
                                .formatted(
                                        padded("", width),
                                        finding.level() == Finding.Level.BROKEN ? "must change:" : "advice:",
                                        advice)));
            }
        }
        long advice = all().stream()
                .filter(finding -> finding.level() == Finding.Level.ADVICE)
                .count();
        lines.add("");
        lines.add(
                isRunnable()
                        ? "Baton runs here; "
                                + (advice == 0 ? "nothing to change." : "lines with advice: " + advice + ".")
                        : "Baton cannot run here; see \"must change\".");
        return lines;
    }

    private static String padded(String text, int width) {
        return text + " ".repeat(width - text.length());
    }

    private List<Map.Entry<String, List<Finding>>> sections() {
        return List.of(
                Map.entry("The model", model),
                Map.entry("This machine has", machine),
                Map.entry("Software", software),
                Map.entry("Baton chooses", choices));
    }

    /** {@code {"runnable": bool, "model": [...], "machine": [{"name", "found", "level", "advice"}], "software": [...], "choices": [...]}}. */
    public ObjectNode json() {
        ObjectNode root = JsonNodeFactory.instance.objectNode();
        root.put("runnable", isRunnable());
        root.set("model", json(model));
        root.set("machine", json(machine));
        root.set("software", json(software));
        root.set("choices", json(choices));
        return root;
    }

    private static ArrayNode json(List<Finding> findings) {
        ArrayNode array = JsonNodeFactory.instance.arrayNode();
        for (Finding finding : findings) {
            ObjectNode node = array.addObject();
            node.put("name", finding.name());
            node.put("found", finding.found());
            node.put("level", finding.level().name().toLowerCase(Locale.ROOT));
            finding.advice().ifPresent(advice -> node.put("advice", advice));
        }
        return array;
    }
}
