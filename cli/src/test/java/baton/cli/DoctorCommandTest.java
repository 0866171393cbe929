package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Program.Ended;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.ObjectMapper;

class DoctorCommandTest {
    @Test
    void theChoicesOfAnInstanceArePrinted() throws Exception {
        Ended ended = Program.run(
                List.of("-Dbaton.kernels=libtorch"), List.of("doctor", "--json", Instances.MODEL.toString()));
        assertThat(ended.status()).as(ended.err()).isZero();
        JsonNode said = new ObjectMapper().readTree(ended.out());
        assertThat(said.path("runnable").asBoolean()).isTrue();
        assertThat(found(said, "choices", "kernels"))
                .startsWith("libtorch: LibTorch's operators")
                .contains("as baton.kernels says");
        assertThat(found(said, "choices", "connectors")).contains("NixlConnector", "SharedStorageConnector");
        assertThat(found(said, "software", "AOT cache")).endsWith("baton.aot");
        assertThat(found(said, "software", "LibTorch")).startsWith("loads");
        assertThat(found(said, "machine", "processor")).isNotEmpty();
        assertThat(found(said, "model", "support")).isEqualTo("LlamaForCausalLM is supported");
        assertThat(found(said, "model", "tokenizer")).isEqualTo("2,048 tokens, with a chat template");
        assertThat(found(said, "model", "decode")).startsWith("up to ");
    }

    @Test
    void modelsThatCannotRunFail(@TempDir Path empty) throws Exception {
        Ended ended = Program.run(List.of("doctor", empty.toString()));
        assertThat(ended.status()).isEqualTo(1);
        assertThat(ended.out())
                .contains("must change: ", empty.toString(), "config.json")
                .endsWith("Baton cannot run here; see \"must change\".\n");
    }

    private static String found(JsonNode said, String section, String name) {
        return Stream.of(said.path(section))
                .flatMap(all -> all.valueStream())
                .filter(each -> each.path("name").asString().equals(name))
                .map(each -> each.path("found").asString())
                .findFirst()
                .orElseThrow();
    }
}
