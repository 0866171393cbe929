package baton.pipe.nccl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.abort;

import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.pipe.PipeException;
import baton.pipe.Wire;
import baton.pipe.WireContract;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.Map;
import java.util.concurrent.FutureTask;
import org.junit.jupiter.api.Test;

/** The contract of wires over NCCL. */
abstract class NcclWireContract extends WireContract {
    /** @param environment names the libraries */
    NcclWireContract(Map<String, String> environment) {
        super(onDevice(environment, 0), onDevice(environment, 1));
    }

    private static NcclTransport onDevice(Map<String, String> environment, int device) {
        try {
            return NcclTransport.load(environment, device, PeerAccess.everyone(), Ticker.system());
        } catch (PipeException e) {
            return abort("two GPUs are needed, and NCCL: " + e.getMessage());
        }
    }

    @Test
    void sentBytesArriveAlthoughTheSenderOrTheReceiverCloses() throws Exception {
        try (Arena arena = Arena.ofShared()) {
            for (int i = 0; i < 8; i++) {
                Wire[] ends = meet();
                boolean receiverCloses = i % 2 == 1;
                MemorySegment sent = arena.allocate(i < 4 ? 10 : 5 << 20).fill((byte) (i + 1));
                MemorySegment into = arena.allocate(sent.byteSize());
                FutureTask<Boolean> receiving = background(() -> {
                    ends[1].receive(into, LONG);
                    if (receiverCloses) {
                        ends[1].close();
                    }
                    return true;
                });
                ends[0].send(sent, LONG);
                if (!receiverCloses) {
                    ends[0].close();
                }
                assertThat(result(receiving)).isTrue();
                assertThat(into.mismatch(sent)).isEqualTo(-1);
            }
        }
    }

    @Test
    void wiresAreMadeAndClosedWhileOtherWiresWait() throws Exception {
        try (Arena arena = Arena.ofShared()) {
            Wire[] waiting = meet();
            FutureTask<Boolean> here = receivingNothing(waiting[0], arena);
            FutureTask<Boolean> there = receivingNothing(waiting[1], arena);
            for (int i = 0; i < 3; i++) {
                Wire[] ends = meet();
                ends[i % 2].close();
                ends[1 - i % 2].close();
            }
            assertThat(here.isDone() || there.isDone()).isFalse();
            waiting[0].close();
            assertThatThrownBy(() -> result(here)).isInstanceOf(PipeException.class);
            assertThatThrownBy(() -> result(there)).isInstanceOf(PipeException.class);
        }
    }

    private static FutureTask<Boolean> receivingNothing(Wire wire, Arena arena) {
        MemorySegment into = arena.allocate(10);
        return background(() -> {
            wire.receive(into, LONG);
            return true;
        });
    }
}
