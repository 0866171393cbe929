package baton.pipe.select;

import baton.kv.ConfigException;
import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.pipe.PipeException;
import baton.pipe.WireId;
import baton.pipe.WireTransport;
import baton.pipe.c10d.GlooTransport;
import baton.pipe.nccl.NcclTransport;
import baton.pipe.tcp.TcpTransport;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Chooses the transport that a configuration asks for. */
public final class WireTransports {
    private static final Logger LOG = LoggerFactory.getLogger(WireTransports.class);

    private WireTransports() {}

    /** The transport that {@code auto} takes, as it is logged. */
    public static String automaticChoice() {
        return "wires: tcp; not gloo, which is slower here, and not nccl, which goes through GPUs although tensors are"
                + " in host memory (transport=gloo and transport=nccl take them all the same)";
    }

    /**
     * Opens the transport of a name, for every peer, by the system's clock.
     *
     * <ul>
     *   <li>{@code auto}: TCP, which is faster than Gloo between processes of a host and needs nothing else
     *   <li>{@code tcp}
     *   <li>{@code gloo}: LibTorch's; both sides need it
     *   <li>{@code nccl}: from memory of a GPU of each side, or from host memory through it: the first that {@code CUDA_VISIBLE_DEVICES} leaves; both sides
     *       need it
     * </ul>
     *
     * @param field the setting that has the name
     * @throws ConfigException if there is no transport of that name, or it cannot be loaded here
     */
    public static WireTransport named(String field, String name) {
        return named(field, name, PeerAccess.everyone(), Ticker.system());
    }

    /**
     * As {@link #named(String, String)}.
     *
     * @param access of peers at meeting points; Gloo cannot restrict them
     */
    public static WireTransport named(String field, String name, PeerAccess access, Ticker ticker) {
        return switch (name) {
            case "auto" -> {
                LOG.info("{}", automaticChoice());
                yield new TcpTransport(WireId.Kind.TCP, access, ticker);
            }
            case "tcp" -> new TcpTransport(WireId.Kind.TCP, access, ticker);
            case "gloo" -> {
                try {
                    yield GlooTransport.load(ticker);
                } catch (PipeException e) {
                    throw new ConfigException(field, "is gloo, but " + e.getMessage(), e);
                }
            }
            case "nccl" -> {
                access.requireUnencrypted(field, name);
                try {
                    yield NcclTransport.load(0, access, ticker);
                } catch (PipeException e) {
                    throw new ConfigException(field, "is nccl, but " + e.getMessage(), e);
                }
            }
            default -> throw ConfigException.unsupported(field, name, "auto, tcp, gloo, nccl");
        };
    }
}
