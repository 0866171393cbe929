package baton.pipe.nccl;

import baton.pipe.PipeException;
import java.util.ArrayDeque;
import java.util.Deque;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Streams of a GPU with memory for a piece each. What a wire gives back is kept for the next one: CUDA frees memory when all is done
 * that the GPU does, kernels of other wires included that wait for their peers. So it is freed after the transport's last wire.
 */
final class NcclLanes {
    private static final Logger LOG = LoggerFactory.getLogger(NcclLanes.class);

    /** Bytes of a piece. */
    static final long PIECE = 4L << 20;

    /** @param pinned address in host memory that the GPU reads and writes by itself */
    record Lane(long stream, long pinned, long onDevice) {}

    private final NcclApi api;
    private final int device;
    private final Deque<Lane> idle = new ArrayDeque<>();
    private int taken;
    private boolean closed;

    NcclLanes(NcclApi api, int device) {
        this.api = api;
        this.device = device;
    }

    NcclApi api() {
        return api;
    }

    /** What this thread calls from now on is for the GPU of these. */
    void useDevice() throws PipeException {
        api.useDevice(device);
    }

    /** One that nothing else uses; the caller gives it back, unless something may go on in it. */
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

    /** @param lane whose work is done */
    synchronized void giveBack(Lane lane) {
        taken--;
        idle.push(lane);
        freeUnused();
    }

    /** Has them freed when none is taken any more; while some are, more can be. */
    synchronized void close() {
        closed = true;
        freeUnused();
    }

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
