package baton.messages.events;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.kv.ZeroMqEndpoint;
import baton.messages.Network;
import baton.messages.PeerAccess;
import java.io.IOException;
import java.net.DatagramSocket;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.InterfaceAddress;
import java.net.NetworkInterface;
import java.net.SocketException;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.atomic.LongAdder;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * Where events are listened for, and by which hosts they may be read. Events have the token ids of prompts, and vLLM's subscribers have no
 * way to prove that they know a secret. So a port that other hosts reach needs the operator's word, and serves listed hosts only.
 */
public final class KvEventAccess {
    /** vLLM's environment variable with this host's address. */
    public static final String HOST_IP = "VLLM_HOST_IP";

    /** The setting with the hosts, for errors. */
    public static final String ALLOWED = "kv_events_allowed_peers";

    private static final Logger log = LoggerFactory.getLogger(KvEventAccess.class);
    private static final String LOOPBACK = "127.0.0.1";

    private final boolean open;
    private final Optional<String> hostIp;
    private final PeerAccess peers;
    private final LongAdder refused = new LongAdder();

    private KvEventAccess(boolean open, Optional<String> hostIp, PeerAccess peers) {
        this.open = open;
        this.hostIp = hostIp;
        this.peers = peers;
    }

    /**
     * @param open whether ports may be open to other hosts without authentication
     * @param allowed hosts, addresses and networks that are served; empty for loopback and the networks of this host's addresses
     * @param secret file with the {@link baton.messages.PeerSecret} of subscribers where connections are sealed: then ports may be open
     *     to all
     * @throws ConfigException if one of them is none
     */
    public static KvEventAccess of(
            boolean open,
            Optional<List<String>> allowed,
            Optional<String> secret,
            Map<String, String> environment,
            Ticker ticker) {
        ObjectNode settings = JsonNodeFactory.instance.objectNode();
        allowed.ifPresent(hosts -> {
            ArrayNode list = settings.putArray(PeerAccess.ALLOWED_PEERS);
            hosts.forEach(list::add);
        });
        secret.ifPresent(
                file -> settings.put(PeerAccess.SECRET_FILE, file).put(PeerAccess.ENCRYPTION, PeerAccess.REQUIRED));
        return new KvEventAccess(
                open || secret.isPresent(),
                Optional.ofNullable(environment.get(HOST_IP)).filter(text -> !text.isBlank()),
                PeerAccess.of(
                        JsonFields.of("kv_events", settings),
                        ALLOWED,
                        "localhost",
                        allowed.isPresent() ? List.of() : networks(),
                        ticker));
    }

    /** The networks of all addresses of this host. */
    private static List<String> networks() {
        List<String> networks = new ArrayList<>();
        try {
            for (NetworkInterface each : NetworkInterface.networkInterfaces().toList()) {
                for (InterfaceAddress address : each.getInterfaceAddresses()) {
                    networks.add(Network.text(address));
                }
            }
        } catch (SocketException e) {
            throw new ConfigException(ALLOWED, "is not set, and this host's networks cannot be looked up", e);
        }
        return networks;
    }

    /**
     * The address to listen on for an endpoint: {@code *} is loopback unless ports may be open, and with port 0 the address of this host
     * that peers receive.
     *
     * @param field that has the endpoint, for errors
     * @throws ConfigException if it is open to other hosts and may not be
     */
    ZeroMqEndpoint listening(String field, ZeroMqEndpoint endpoint) {
        if (endpoint.isEveryAddress()) {
            if (!open) {
                log.warn(
                        "{} is {}: other hosts cannot reach it, as events have the token ids of prompts and every host there could read"
                                + " them; --kv-allow-unauthenticated opens it",
                        field,
                        endpoint);
                return new ZeroMqEndpoint(LOOPBACK, endpoint.port());
            }
            return endpoint.port() == 0 ? new ZeroMqEndpoint(hostIp.orElseGet(() -> ownAddress(field)), 0) : endpoint;
        }
        if (!open && !isLoopback(field, endpoint.host())) {
            throw new ConfigException(
                    field,
                    "is " + endpoint
                            + ", where other hosts could read events, which have the token ids of prompts: give an"
                            + " address of loopback, or, on a network where every host may read them,"
                            + " --kv-allow-unauthenticated");
        }
        return endpoint;
    }

    private static boolean isLoopback(String field, String host) {
        try {
            return Arrays.stream(InetAddress.getAllByName(host)).allMatch(InetAddress::isLoopbackAddress);
        } catch (UnknownHostException e) {
            throw new ConfigException(field, "has the host " + host + ", which has no known address", e);
        }
    }

    /** The address from which this host reaches other hosts; sends nothing. */
    private static String ownAddress(String field) {
        try (DatagramSocket socket = new DatagramSocket()) {
            // Of the block for documentation, which has no host: it goes by the default route.
            socket.connect(new InetSocketAddress(InetAddress.ofLiteral("192.0.2.1"), 9));
            InetAddress own = socket.getLocalAddress();
            if (own.isAnyLocalAddress()) {
                throw new IOException("there is no route to other hosts");
            }
            return own.getHostAddress();
        } catch (IOException | RuntimeException e) {
            throw new ConfigException(
                    field, "has port 0, for which this host's address must be known: set " + HOST_IP + " to it", e);
        }
    }

    /** Whether a connection from the address is served; a refusal is logged and counted. Does not wait. */
    boolean admits(InetAddress from) {
        if (peers.admits(from)) {
            return true;
        }
        refused.increment();
        peers.refuse(from.getHostAddress(), "as a subscriber to KV events, it is " + peers.notAllowed());
        return false;
    }

    /** Whether connections are sealed. */
    PeerAccess peers() {
        return peers;
    }

    long refused() {
        return refused.sum();
    }

    /** To be called before connections arrive. */
    void expectPeers() {
        peers.expectPeers();
    }
}
