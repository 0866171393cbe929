// Disaggregated prefilling offline with P2pNcclConnector: one process computes prompts and sends their KV, two more generate from it.
//
//   examples/run P2pNcclOffline [MODEL [KV_PORT]]
//
// The request ids contain the addresses of the prefill and the decode process; in a cluster the router makes such ids. Control messages
// are received at KV_PORT (prefill process), KV_PORT + 1 and KV_PORT + 2 (decode processes).

import baton.engine.EngineConfig;
import baton.engine.local.GenerationCollector;
import baton.engine.GenerationRequest;
import baton.engine.local.LLM;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.messages.p2p.P2pRequestId;
import baton.messages.PeerAddress;

static final String HOST = "127.0.0.1";
static final List<String> PROMPTS = List.of(
        "Once upon a time there was a miller",
        "The home of Odile is in",
        "The code for the inner gate is",
        "The miller had a daughter");

void main(String... args) throws Exception {
    switch (args.length > 0 ? args[args.length - 1] : "") {
        case "--prefill" -> prefill(args);
        case "--decode-1" -> decode(1, args);
        case "--decode-2" -> decode(2, args);
        default -> allProcesses(args);
    }
}

int port(String[] args) {
    return args.length > 2 ? Integer.parseInt(args[1]) : 14579;
}

EngineConfig config(KvRole role, int number, String[] args) {
    return EngineConfig.of(Path.of(args.length > 1 ? args[0] : "models/tiny-ledger"))
            .kvTransfer(KvTransferConfig.builder("P2pNcclConnector", role)
                    .ip(HOST)
                    .port(port(args) + number)
                    .loadFailurePolicy(LoadFailurePolicy.RECOMPUTE)
                    .extra("mem_pool_size_gb", 1)
                    .build())
            .build();
}

/** The id of a prompt's request, the same in both processes: the first decode process takes the even ones. */
String id(int prompt, String[] args) {
    PeerAddress prefill = new PeerAddress(HOST, port(args));
    return new P2pRequestId(prefill, prefill.above(1 + prompt % 2), "%032x".formatted(prompt)).format();
}

Future<RequestOutput> ask(LLM llm, int prompt, SamplingParams sampling, String[] args) {
    int[] tokens = llm.engine().tokenizer().encode(PROMPTS.get(prompt), true);
    GenerationRequest request = new GenerationRequest(id(prompt, args), tokens, sampling);
    GenerationCollector collector = new GenerationCollector(request);
    llm.engine().submit(request, collector);
    return collector.result();
}

void prefill(String[] args) throws Exception {
    try (LLM llm = new LLM(config(KvRole.PRODUCER, 0, args))) {
        // Starts after the decode processes are ready.
        IO.readln();
        List<Future<RequestOutput>> asked = new ArrayList<>();
        for (int prompt = 0; prompt < PROMPTS.size(); prompt++) {
            asked.add(ask(llm, prompt, SamplingParams.greedy(1), args));
        }
        for (Future<RequestOutput> each : asked) {
            each.get();
        }
        IO.println("prefillDone");
        // Another thread sends the tensors: this process must live until the decode processes are done.
        System.in.transferTo(OutputStream.nullOutputStream());
    }
}

void decode(int number, String[] args) throws Exception {
    try (LLM llm = new LLM(config(KvRole.CONSUMER, number, args))) {
        IO.println("ready");
        IO.readln();
        for (int prompt = number - 1; prompt < PROMPTS.size(); prompt += 2) {
            RequestOutput output = ask(llm, prompt, SamplingParams.greedy(24), args).get();
            IO.println("decode process %d, %d of %d prompt tokens taken over: %s"
                    .formatted(number, output.cachedTokens(), output.prompt().length, output.text().strip()));
        }
    }
}

/** Starts this program three times more; the events between the processes go through this one. */
void allProcesses(String... args) throws Exception {
    Process prefill = again("--prefill", args);
    List<Process> decodes = List.of(again("--decode-1", args), again("--decode-2", args));
    List<BufferedReader> answers = decodes.stream().map(Process::inputReader).toList();
    try (BufferedReader prefilled = prefill.inputReader()) {
        for (BufferedReader each : answers) {
            expect("ready", each);
        }
        tell(prefill);
        expect("prefillDone", prefilled);
        for (Process each : decodes) {
            tell(each);
        }
        for (BufferedReader each : answers) {
            each.lines().forEach(IO::println);
        }
    } finally {
        prefill.getOutputStream().close();
        for (Process each : decodes) {
            each.getOutputStream().close();
        }
    }
    int failed = prefill.waitFor();
    for (Process each : decodes) {
        failed += each.waitFor();
    }
    if (failed != 0) {
        throw new IllegalStateException("a process has failed");
    }
}

void expect(String event, BufferedReader from) throws IOException {
    String line = from.readLine();
    if (!event.equals(line)) {
        throw new IllegalStateException("a process has failed: '%s' instead of '%s'".formatted(line, event));
    }
}

void tell(Process process) throws IOException {
    process.getOutputStream().write('\n');
    process.getOutputStream().flush();
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
