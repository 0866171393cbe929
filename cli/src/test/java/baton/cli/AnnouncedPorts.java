package baton.cli;

import baton.testkit.Damages;
import baton.testkit.DamagingProxy;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Leads connections to ports that connectors announce through proxies: the embedded transfer agent's metadata, Mooncake's registry,
 * requests and segment descriptors. A port keeps its number of digits and bytes, so that no length changes.
 */
final class AnnouncedPorts implements DamagingProxy.Rewriting, AutoCloseable {
    /** Lane names begin with it. */
    static final String NAME = "announced";

    private static final int FIVE_DIGITS = 10_000;
    /** Text of a port, or its bytes: the embedded agent's four, msgpack's two behind their type. */
    private static final Pattern PORT = Pattern.compile(
            "127\\.0\\.0\\.1:(?<text>\\d{5})(?!\\d)"
                    + "|\"tcp_data_port\":\\s*(?<json>\\d{5})(?!\\d)"
                    + "|127\\.0\\.0\\.1\\x00\\x00(?<agent>..)"
                    + "|remote_port\\xcd(?<msgpack>..)",
            Pattern.DOTALL);

    private final Damages damages;
    private final Map<Integer, DamagingProxy> proxies = new HashMap<>();

    AnnouncedPorts(Damages damages) {
        this.damages = damages;
    }

    @Override
    public void rewrite(DamagingProxy proxy, byte[] bytes) throws IOException {
        Matcher matcher = PORT.matcher(new String(bytes, StandardCharsets.ISO_8859_1));
        while (matcher.find()) {
            for (String group : new String[] {"text", "json"}) {
                if (matcher.group(group) != null) {
                    int port = Integer.parseInt(matcher.group(group));
                    byte[] through = Integer.toString(through(port)).getBytes(StandardCharsets.ISO_8859_1);
                    System.arraycopy(through, 0, bytes, matcher.start(group), through.length);
                }
            }
            for (String group : new String[] {"agent", "msgpack"}) {
                if (matcher.group(group) != null) {
                    int at = matcher.start(group);
                    int port = (bytes[at] & 0xff) << Byte.SIZE | bytes[at + 1] & 0xff;
                    int through = through(port);
                    bytes[at] = (byte) (through >> Byte.SIZE);
                    bytes[at + 1] = (byte) through;
                }
            }
        }
    }

    /** The port of the proxy for a server's port; of a proxy itself, its own. */
    private synchronized int through(int port) throws IOException {
        if (port == 0 || proxies.values().stream().anyMatch(each -> each.port() == port)) {
            return port;
        }
        DamagingProxy known = proxies.get(port);
        if (known == null) {
            known = open(port);
            proxies.put(port, known);
        }
        return known.port();
    }

    synchronized List<DamagingProxy.Conversation> conversations() {
        return proxies.values().stream()
                .flatMap(proxy -> proxy.conversations().stream())
                .toList();
    }

    private DamagingProxy open(int port) throws IOException {
        InetSocketAddress server = new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
        while (true) {
            DamagingProxy proxy = new DamagingProxy(NAME, 0, server, damages, this);
            if (proxy.port() >= FIVE_DIGITS) {
                return proxy;
            }
            proxy.close();
        }
    }

    @Override
    public synchronized void close() throws IOException {
        for (DamagingProxy proxy : proxies.values()) {
            proxy.close();
        }
    }
}
