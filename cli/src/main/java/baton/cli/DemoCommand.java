package baton.cli;

import baton.cli.ApiClient.Answer;
import baton.cluster.LocalCluster;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintWriter;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

/** {@code baton demo}: one hand-over, from start to picture. */
@Command(
        name = "demo",
        description =
                "Starts a prefill instance, a decode instance and a router, asks a question about a long text and shows the hand-over.",
        mixinStandardHelpOptions = true)
final class DemoCommand implements Callable<Integer> {
    static final String QUESTION = "To whom does the glass dagger belong?";
    private static final int MAX_TOKENS = 48;

    @Spec
    private CommandSpec spec;

    @Option(
            names = "--question",
            defaultValue = QUESTION,
            description = "A question about the ledger (default: ${DEFAULT-VALUE}).")
    private String question;

    @Option(names = "--model", description = "Checkpoint directory (default: the embedded tiny-ledger).")
    private @Nullable Path model;

    @Mixin
    private final ClusterOptions options = new ClusterOptions();

    @Override
    public Integer call() throws IOException, InterruptedException {
        PrintWriter out = spec.commandLine().getOut();
        Path directory = Models.orEmbedded(Optional.ofNullable(model));
        try (LocalCluster cluster = options.start(directory, 0, true, out);
                ApiClient client = new ApiClient()) {
            String ledger = ledger();
            out.printf(
                    "The prompt: a ledger of %d facts, the first being%n  %s%nand a question:%n  %s%n",
                    ledger.lines().count(), ledger.lines().findFirst().orElse(""), question);
            String content = ledger.strip() + "\n\n" + question;

            Map<String, Double> prefillBefore = client.metrics(cluster.prefill());
            Map<String, Double> decodeBefore = client.metrics(cluster.decode());
            out.print("The answer, streamed:\n  ");
            Answer answer = client.chat(cluster.router(), content, MAX_TOKENS, piece -> {
                out.print(piece);
                out.flush();
            });
            out.println("\n");
            HandoverPicture picture = HandoverPicture.between(
                    prefillBefore,
                    client.metrics(cluster.prefill()),
                    decodeBefore,
                    client.metrics(cluster.decode()),
                    answer);
            picture.print(out);
            return verdict(out, picture, answer, colocated(client, cluster.prefill(), content));
        }
    }

    /** The same question answered by one instance alone. */
    private static String colocated(ApiClient client, URI instance, String content)
            throws IOException, InterruptedException {
        return client.chat(instance, content, MAX_TOKENS, piece -> {}).text();
    }

    private static int verdict(PrintWriter out, HandoverPicture picture, Answer answer, String colocated) {
        boolean same = answer.text().equals(colocated);
        out.println(
                same
                        ? "One instance alone gives the same answer."
                        : "NOT the same answer as one instance alone, which says: " + colocated);
        if (picture.handedOver() == 0) {
            out.println("NOTHING was handed over: the decode instance computed the whole prompt itself.");
        }
        out.flush();
        return same && picture.handedOver() > 0 ? 0 : 1;
    }

    static String ledger() throws IOException {
        try (InputStream stream = DemoCommand.class.getResourceAsStream("ledger.txt")) {
            if (stream == null) {
                throw new IOException("ledger.txt is missing from the jar");
            }
            return new String(stream.readAllBytes(), StandardCharsets.UTF_8);
        }
    }
}
