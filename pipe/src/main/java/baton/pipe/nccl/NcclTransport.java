package baton.pipe.nccl;

import baton.messages.PeerAccess;
import baton.pipe.PipeException;
import baton.pipe.Wire;
import baton.pipe.WireId;
import baton.pipe.WireTransport;
import baton.pipe.tcp.TcpTransport;
import java.time.Duration;
import java.util.Map;
import java.util.Optional;

/**
 * Wires over NCCL, between processes that have a GPU each. Both ends meet over TCP, where tokens and addresses are checked as for
 * wires over TCP, and agree there on NCCL's unique ids; the bytes go from host memory through the GPUs. NCCL trusts its network.
 *
 * <p>Not tried on a GPU so far: what is known to be right is how the libraries' functions are called. Memory of the GPU is kept for
 * the next wire, and freed when the transport and its last wire are closed.
 */
public final class NcclTransport implements WireTransport {
    private final TcpTransport meeting;
    private final NcclLanes lanes;

    private NcclTransport(NcclLanes lanes, Optional<PeerAccess> access) {
        this.meeting = new TcpTransport(WireId.Kind.NCCL, access);
        this.lanes = lanes;
    }

    /**
     * Loads NCCL and CUDA's runtime, from where the environment variables {@value NcclApi#NCCL_VARIABLE} and
     * {@value NcclApi#CUDA_VARIABLE} say, else by the loader's path.
     *
     * @param device of those that {@code CUDA_VISIBLE_DEVICES} leaves
     * @param access which peers may come to a meeting; empty if all may
     * @throws PipeException if they are not there, or that GPU is not; with what to do
     */
    public static NcclTransport load(int device, Optional<PeerAccess> access) throws PipeException {
        return load(System.getenv(), device, access);
    }

    static NcclTransport load(Map<String, String> environment, int device, Optional<PeerAccess> access)
            throws PipeException {
        NcclApi api = NcclApi.load(environment);
        if (device < 0 || device >= api.devices()) {
            throw new PipeException("there is no GPU %d, of %d".formatted(device, api.devices()));
        }
        return new NcclTransport(new NcclLanes(api, device), access);
    }

    @Override
    public String name() {
        return "nccl";
    }

    @Override
    public Wire meet(String host, int port, int rank, Duration timeout) throws PipeException {
        long begun = System.nanoTime();
        return over(meeting.meet(host, port, rank, timeout), rank, timeout, begun);
    }

    @Override
    public Offer offer(String host) throws PipeException {
        Offer offer = meeting.offer(host);
        return new Offer() {
            @Override
            public byte[] id() {
                return offer.id();
            }

            @Override
            public Wire accept(Duration timeout) throws PipeException {
                long begun = System.nanoTime();
                return over(offer.accept(timeout), 0, timeout, begun);
            }

            @Override
            public void close() {
                offer.close();
            }
        };
    }

    @Override
    public Wire join(byte[] id, String host, Duration timeout) throws PipeException {
        long begun = System.nanoTime();
        return over(meeting.join(id, host, timeout), 1, timeout, begun);
    }

    private Wire over(Wire control, int rank, Duration timeout, long begun) throws PipeException {
        return NcclWire.over(control, lanes, rank, timeout.minusNanos(System.nanoTime() - begun));
    }

    @Override
    public void close() {
        meeting.close();
        lanes.close();
    }
}
