package baton.pipe.select;

import baton.kv.ConfigException;
import baton.messages.PeerAccess;
import baton.pipe.PipeException;
import baton.pipe.WireId;
import baton.pipe.WireTransport;
import baton.pipe.c10d.GlooTransport;
import baton.pipe.nccl.NcclTransport;
import baton.pipe.tcp.TcpTransport;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Chooses the transport that a configuration asks for. */
public final class WireTransports {
    private static final Logger LOG = LoggerFactory.getLogger(WireTransports.class);

    private WireTransports() {}

    /**
     * Opens the transport of a name.
     *
     * <ul>
     *   <li>{@code auto}: the best there is; TCP, which is faster than Gloo between processes of a host and asks for nothing
     *   <li>{@code tcp}
     *   <li>{@code gloo}: LibTorch's; both sides must ask for it
     *   <li>{@code nccl}: from host memory through a GPU of each side, the first that {@code CUDA_VISIBLE_DEVICES} leaves; both sides
     *       must ask for it
     * </ul>
     *
     * @param field the setting that has the name
     * @throws ConfigException if there is none of that name, or it cannot be had here
     */
    public static WireTransport named(String field, String name) {
        return named(field, name, Optional.empty());
    }

    /**
     * As {@link #named}.
     *
     * @param access which peers may come to a meeting, where the transport can tell; Gloo cannot
     */
    public static WireTransport named(String field, String name, Optional<PeerAccess> access) {
        return switch (name) {
            case "auto" -> {
                LOG.info(
                        "wires: tcp; not gloo, which is slower here, and not nccl, which goes through GPUs although KV caches are"
                                + " in host memory (transport=gloo and transport=nccl take them all the same)");
                yield new TcpTransport(WireId.Kind.TCP, access);
            }
            case "tcp" -> new TcpTransport(WireId.Kind.TCP, access);
            case "gloo" -> {
                try {
                    yield GlooTransport.load();
                } catch (PipeException e) {
                    throw new ConfigException(field, "is gloo, but " + e.getMessage(), e);
                }
            }
            case "nccl" -> {
                try {
                    yield NcclTransport.load(0, access);
                } catch (PipeException e) {
                    throw new ConfigException(field, "is nccl, but " + e.getMessage(), e);
                }
            }
            default -> throw ConfigException.unsupported(field, name, "auto, tcp, gloo, nccl");
        };
    }
}
