package baton.pipe;

import baton.kv.ConfigException;
import baton.pipe.c10d.GlooTransport;
import baton.pipe.tcp.TcpTransport;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Chooses the transport that a configuration asks for. */
public final class WireTransports {
    private static final Logger LOG = LoggerFactory.getLogger(WireTransports.class);

    private static final String WHY_NOT_NCCL = "NCCL moves memory of GPUs, and KV caches are in host memory here";

    private WireTransports() {}

    /**
     * Opens the transport of a name.
     *
     * <ul>
     *   <li>{@code auto}: the best there is; TCP, which is faster than Gloo between processes of a host and asks for nothing
     *   <li>{@code tcp}
     *   <li>{@code gloo}: LibTorch's; both sides must ask for it
     *   <li>{@code nccl}: refused, because it moves memory of GPUs only
     * </ul>
     *
     * @param field the setting that has the name
     * @throws ConfigException if there is none of that name, or it cannot be had here
     */
    public static WireTransport named(String field, String name) {
        return switch (name) {
            case "auto" -> {
                LOG.info(
                        "wires: tcp; not gloo, which is slower here (transport=gloo takes it all the same); not nccl: {}",
                        WHY_NOT_NCCL);
                yield new TcpTransport();
            }
            case "tcp" -> new TcpTransport();
            case "gloo" -> {
                try {
                    yield GlooTransport.load();
                } catch (PipeException e) {
                    throw new ConfigException(field, "is gloo, but " + e.getMessage(), e);
                }
            }
            case "nccl" ->
                throw new ConfigException(field, "is nccl, but " + WHY_NOT_NCCL + "; tcp and gloo move that");
            default -> throw ConfigException.unsupported(field, name, "auto, tcp, gloo");
        };
    }
}
