package baton.router.upstream;

import io.netty.buffer.ByteBuf;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.nio.NioIoHandler;
import io.netty.channel.socket.nio.NioDatagramChannel;
import io.netty.channel.socket.nio.NioSocketChannel;
import io.netty.handler.codec.dns.DefaultDnsQuestion;
import io.netty.handler.codec.dns.DefaultDnsRecordDecoder;
import io.netty.handler.codec.dns.DnsRawRecord;
import io.netty.handler.codec.dns.DnsRecord;
import io.netty.handler.codec.dns.DnsRecordType;
import io.netty.resolver.dns.DnsNameResolver;
import io.netty.resolver.dns.DnsNameResolverBuilder;
import io.netty.resolver.dns.DnsServerAddressStreamProviders;
import io.netty.resolver.dns.NoopDnsCache;
import io.netty.resolver.dns.NoopDnsCnameCache;
import io.netty.resolver.dns.SingletonDnsServerAddressStreamProvider;
import io.netty.util.ReferenceCountUtil;
import io.netty.util.concurrent.Future;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Looks up names: addresses by the system's resolver, services and, where a DNS server is given, addresses too by DNS. Calls block for a few
 * seconds at most.
 */
final class DnsNames implements AutoCloseable {
    private static final Duration QUERY_TIMEOUT = Duration.ofSeconds(2);
    private static final Duration TIMEOUT = Duration.ofSeconds(10);
    private static final int NUMBERS_BYTES = 6;

    private final boolean ownServer;
    private final EventLoopGroup loop;
    private final DnsNameResolver resolver;

    /**
     * One target of a service (RFC 2782).
     *
     * @param weight share of the requests, compared with others; 0 where there is nothing to choose
     * @param host name or address
     */
    record Target(int priority, int weight, int port, String host) {}

    /** @param server a DNS server; empty for the system's */
    DnsNames(Optional<InetSocketAddress> server) {
        ownServer = server.isPresent();
        loop = new MultiThreadIoEventLoopGroup(1, NioIoHandler.newFactory());
        resolver = new DnsNameResolverBuilder(loop.next())
                .datagramChannelType(NioDatagramChannel.class)
                // For answers that are too long for a datagram.
                .socketChannelType(NioSocketChannel.class)
                .queryTimeoutMillis(QUERY_TIMEOUT.toMillis())
                .resolveCache(NoopDnsCache.INSTANCE)
                .cnameCache(NoopDnsCnameCache.INSTANCE)
                .nameServerProvider(
                        server.isPresent()
                                ? new SingletonDnsServerAddressStreamProvider(server.get())
                                : DnsServerAddressStreamProviders.platformDefault())
                .build();
    }

    /** Addresses of a host, those of IPv6 in brackets. */
    List<String> addresses(String host) throws IOException {
        List<InetAddress> found =
                ownServer ? get(host, resolver.resolveAll(host)) : Arrays.asList(InetAddress.getAllByName(host));
        return found.stream()
                .map(InetAddress::getHostAddress)
                .map(address -> address.contains(":") ? "[" + address + "]" : address)
                .toList();
    }

    /** The targets of a service, {@code _service._proto.name}, that come first: those of the lowest priority. */
    List<Target> targets(String service) throws IOException {
        String name = service.endsWith(".") ? service : service + ".";
        List<DnsRecord> records = get(service, resolver.resolveAll(new DefaultDnsQuestion(name, DnsRecordType.SRV)));
        List<Target> targets = new ArrayList<>();
        try {
            for (DnsRecord record : records) {
                if (record.type().equals(DnsRecordType.SRV) && record instanceof DnsRawRecord raw) {
                    targets.add(target(service, raw.content()));
                }
            }
        } finally {
            records.forEach(ReferenceCountUtil::release);
        }
        if (targets.isEmpty()) {
            throw new IOException(service + " has no SRV record");
        }
        int first = targets.stream().mapToInt(Target::priority).min().orElseThrow();
        // A target that is the root says that the service is not there.
        return targets.stream()
                .filter(target -> target.priority == first && !target.host.isEmpty())
                .toList();
    }

    private static Target target(String service, ByteBuf content) throws IOException {
        if (content.readableBytes() <= NUMBERS_BYTES) {
            throw new IOException("the SRV record of " + service + " has " + content.readableBytes() + " bytes");
        }
        int priority = content.readUnsignedShort();
        int weight = content.readUnsignedShort();
        int port = content.readUnsignedShort();
        String host = DefaultDnsRecordDecoder.decodeName(content);
        return new Target(priority, weight, port, host.endsWith(".") ? host.substring(0, host.length() - 1) : host);
    }

    private static <T> T get(String name, Future<T> answer) throws IOException {
        try {
            return answer.get(TIMEOUT.toMillis(), TimeUnit.MILLISECONDS);
        } catch (ExecutionException | TimeoutException e) {
            throw new IOException(name + " is not found: " + e, e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException(name + " is not found: interrupted", e);
        }
    }

    @Override
    public void close() {
        resolver.close();
        Future<?> _ = loop.shutdownGracefully(0, 1, TimeUnit.SECONDS);
    }
}
