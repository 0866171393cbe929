package baton.pipe.nccl;

import baton.kv.Deadline;
import baton.kv.KvDevice;
import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.pipe.PipeException;
import baton.pipe.Wire;
import baton.pipe.WireId;
import baton.pipe.WireTransport;
import baton.pipe.tcp.TcpTransport;
import java.time.Duration;
import java.util.Map;

/**
 * Experimental: wires over NCCL, between processes that have a GPU each. Both ends connect over TCP first, where tokens and
 * addresses are checked as for wires over TCP, and exchange NCCL's unique ids there; the bytes go from memory of the
 * GPU, or from host memory through it. NCCL trusts its network.
 *
 * <p>Never run on a GPU so far: only the calls of the libraries' functions are tested. Memory of the GPU is kept for the next
 * wire, and freed when the transport and its last wire are closed.
 */
public final class NcclTransport implements WireTransport {
    private final TcpTransport control;
    private final NcclLanes lanes;
    private final Ticker ticker;

    private NcclTransport(NcclLanes lanes, PeerAccess access, Ticker ticker) {
        this.control = new TcpTransport(WireId.Kind.NCCL, access, ticker);
        this.lanes = lanes;
        this.ticker = ticker;
    }

    /**
     * Loads NCCL and CUDA's runtime, from where the environment variables {@value NcclApi#NCCL_VARIABLE} and
     * {@value NcclApi#CUDA_VARIABLE} say, else by the loader's path.
     *
     * @param device index among those that {@code CUDA_VISIBLE_DEVICES} leaves
     * @param access of peers at meeting points
     * @throws PipeException if the libraries or the GPU are missing; with the remedy
     */
    public static NcclTransport load(int device, PeerAccess access, Ticker ticker) throws PipeException {
        return load(System.getenv(), device, access, ticker);
    }

    static NcclTransport load(Map<String, String> environment, int device, PeerAccess access, Ticker ticker)
            throws PipeException {
        NcclApi api = NcclApi.load(environment);
        if (device < 0 || device >= api.devices()) {
            throw new PipeException("there is no GPU %d, of %d".formatted(device, api.devices()));
        }
        return new NcclTransport(new NcclLanes(api, device), access, ticker);
    }

    @Override
    public String name() {
        return "nccl";
    }

    @Override
    public boolean reaches(KvDevice other) {
        return other.equals(lanes.device());
    }

    @Override
    public Wire meet(String host, int port, int rank, Duration timeout) throws PipeException {
        Deadline deadline = Deadline.after(ticker, timeout);
        return over(control.meet(host, port, rank, timeout), rank, deadline);
    }

    @Override
    public Offer offer(String host) throws PipeException {
        Offer offer = control.offer(host);
        return new Offer() {
            @Override
            public byte[] id() {
                return offer.id();
            }

            @Override
            public Wire accept(Duration timeout) throws PipeException {
                Deadline deadline = Deadline.after(ticker, timeout);
                return over(offer.accept(timeout), 0, deadline);
            }

            @Override
            public void close() {
                offer.close();
            }
        };
    }

    @Override
    public Wire join(byte[] id, String host, Duration timeout) throws PipeException {
        Deadline deadline = Deadline.after(ticker, timeout);
        return over(control.join(id, host, timeout), 1, deadline);
    }

    private Wire over(Wire connection, int rank, Deadline deadline) throws PipeException {
        return NcclWire.over(connection, lanes, rank, ticker, deadline);
    }

    @Override
    public void close() {
        control.close();
        lanes.close();
    }
}
