package baton.pipe.nccl;

import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.pipe.PipeException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Missing libraries are named in the error. */
class NcclTransportTest {
    @Test
    void aMissingLibraryIsNamedWithTheRemedy(@TempDir Path directory) throws IOException {
        Path none = Files.writeString(directory.resolve("libcudart.so.12"), "no library");
        assertThatThrownBy(() -> NcclTransport.load(
                        Map.of(NcclApi.CUDA_VARIABLE, directory.toString()), 0, PeerAccess.everyone(), Ticker.system()))
                .isInstanceOf(PipeException.class)
                .hasMessageContainingAll(
                        "NCCL is not available", none.toString(), "pip install", NcclApi.NCCL_VARIABLE);
        assertThatThrownBy(() -> NcclTransport.load(
                        Map.of(NcclApi.CUDA_VARIABLE, none.toString()), 0, PeerAccess.everyone(), Ticker.system()))
                .isInstanceOf(PipeException.class)
                .hasMessageContainingAll("(cannot load " + none + ")", "pip install");
    }

    @Test
    void aLibraryWithoutTheFunctionsIsRefused() {
        Map<String, String> others = Map.of(NcclApi.CUDA_VARIABLE, "libc.so.6", NcclApi.NCCL_VARIABLE, "libc.so.6");
        assertThatThrownBy(() -> NcclTransport.load(others, 0, PeerAccess.everyone(), Ticker.system()))
                .isInstanceOf(PipeException.class)
                .hasMessageContainingAll("NCCL is not available", "libc.so.6");
    }
}
