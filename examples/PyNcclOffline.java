// Disaggregated prefilling offline: one process computes prompts, another continues them, as in vLLM's offline example.
//
//   examples/run PyNcclOffline [MODEL [KV_PORT]]
//
// The decode process takes each prompt's keys, values and last hidden state from the prefill process and runs the model only for the
// tokens that it generates.

import baton.engine.EngineConfig;
import baton.engine.local.LLM;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;

static final List<String> PROMPTS = List.of(
        "Once upon a time there was a miller",
        "The home of Odile is in",
        "The code for the inner gate is");

void main(String... args) throws Exception {
    switch (args.length > 0 ? args[args.length - 1] : "") {
        case "--prefill" -> prefill(config(KvRole.PRODUCER, args));
        case "--decode" -> decode(config(KvRole.CONSUMER, args));
        default -> bothProcesses(args);
    }
}

EngineConfig config(KvRole role, String[] args) {
    Path model = Path.of(args.length > 1 ? args[0] : "models/tiny-ledger");
    return EngineConfig.of(model)
            .kvTransfer(KvTransferConfig.builder("PyNcclConnector", role)
                    .rank(role == KvRole.PRODUCER ? 0 : 1)
                    .parallelSize(2)
                    .port(args.length > 2 ? Integer.parseInt(args[1]) : 14579)
                    .bufferSize(1_000_000_000)
                    .loadFailurePolicy(LoadFailurePolicy.RECOMPUTE)
                    .extra("connect_wait_seconds", 60)
                    .build())
            .build();
}

void prefill(EngineConfig config) throws IOException {
    try (LLM llm = new LLM(config)) {
        llm.generate(PROMPTS, SamplingParams.greedy(1));
        IO.println("prefillDone");
        // The KV caches are held here until they are received: this process must live until the decode process is done.
        System.in.transferTo(OutputStream.nullOutputStream());
    }
}

void decode(EngineConfig config) {
    // Loading the model takes a while, so it is done before the wait.
    try (LLM llm = new LLM(config)) {
        IO.readln();
        for (RequestOutput output : llm.generate(PROMPTS, SamplingParams.greedy(24))) {
            IO.println("%d of %d prompt tokens taken over: %s"
                    .formatted(output.cachedTokens(), output.prompt().length, output.text().strip()));
        }
    }
}

/** Starts this program twice more and tells the second when the first has computed the prompts: the event between them. */
void bothProcesses(String... args) throws Exception {
    Process prefill = again("--prefill", args);
    Process decode = again("--decode", args);
    try (BufferedReader prefilled = prefill.inputReader();
            BufferedReader answers = decode.inputReader()) {
        if (!"prefillDone".equals(prefilled.readLine())) {
            throw new IllegalStateException("the prefill process has failed");
        }
        try (Writer event = decode.outputWriter()) {
            event.write("prefillDone\n");
        }
        answers.lines().forEach(IO::println);
    } finally {
        prefill.getOutputStream().close();
        decode.getOutputStream().close();
    }
    if (prefill.waitFor() + decode.waitFor() != 0) {
        throw new IllegalStateException("a process has failed: %d, %d".formatted(prefill.exitValue(), decode.exitValue()));
    }
}

/** Starts this source file once more, with one more argument. */
Process again(String role, String... args) throws Exception {
    Path source = Path.of(getClass().getProtectionDomain().getCodeSource().getLocation().toURI());
    List<String> command = new ArrayList<>(List.of(
            Path.of(System.getProperty("java.home"), "bin", "java").toString(),
            "--enable-native-access=ALL-UNNAMED",
            "--sun-misc-unsafe-memory-access=allow",
            "-cp",
            System.getProperty("java.class.path"),
            source.toString()));
    command.addAll(List.of(args));
    command.add(role);
    return new ProcessBuilder(command)
            .redirectError(ProcessBuilder.Redirect.INHERIT)
            .start();
}
