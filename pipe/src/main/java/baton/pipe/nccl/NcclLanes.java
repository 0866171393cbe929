package baton.pipe.nccl;

import baton.kv.KvDevice;
import baton.pipe.PipeException;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayDeque;
import java.util.Deque;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Streams of a GPU with memory for a piece each. A returned lane is kept for the next wire: to free memory CUDA waits until the
 * GPU is idle, including other wires' kernels that wait for their peers. So it is freed after the transport's last wire.
 */
final class NcclLanes {
    private static final Logger LOG = LoggerFactory.getLogger(NcclLanes.class);

    /** Bytes of a piece. */
    static final long PIECE = 4L << 20;

    /** @param pinned address in host memory that the GPU can access */
    record Lane(long stream, long pinned, long onDevice) {}

    private final NcclApi api;
    private final int device;

    @GuardedBy("this")
    private final Deque<Lane> idle = new ArrayDeque<>();

    @GuardedBy("this")
    private int taken;

    @GuardedBy("this")
    private boolean closed;

    NcclLanes(NcclApi api, int device) {
        this.api = api;
        this.device = device;
    }

    KvDevice device() {
        return new KvDevice("cuda", device);
    }

    NcclApi api() {
        return api;
    }

    /** Selects the GPU for the thread's calls of CUDA and NCCL. */
    void useDevice() throws PipeException {
        api.useDevice(device);
    }

    /** An unused lane; the caller returns it, unless work may still run on it. */
    synchronized Lane take() throws PipeException {
        Lane lane = idle.isEmpty() ? make() : idle.pop();
        taken++;
        return lane;
    }

    private Lane make() throws PipeException {
        useDevice();
        Lane made = new Lane(api.stream(), 0, 0);
        try {
            made = new Lane(made.stream, api.pinnedMemory(PIECE), 0);
            return new Lane(made.stream, made.pinned, api.deviceMemory(PIECE));
        } catch (PipeException e) {
            free(made);
            throw e;
        }
    }

    /** @param lane without running work */
    synchronized void giveBack(Lane lane) {
        taken--;
        idle.push(lane);
        freeUnused();
    }

    /** Frees all lanes once none is taken. */
    synchronized void close() {
        closed = true;
        freeUnused();
    }

    @GuardedBy("this")
    private void freeUnused() {
        while (closed && taken == 0 && !idle.isEmpty()) {
            free(idle.pop());
        }
    }

    private void free(Lane lane) {
        try {
            useDevice();
            api.freeStream(lane.stream);
            api.freePinnedMemory(lane.pinned);
            api.freeDeviceMemory(lane.onDevice);
        } catch (PipeException e) {
            LOG.warn("memory of GPU {} is not freed: {}", device, e.getMessage());
        }
    }
}
