package baton.messages;

import baton.kv.ConfigException;
import baton.kv.Ticker;
import java.net.InetAddress;
import java.net.NetworkInterface;
import java.net.SocketException;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.Set;

/**
 * The hosts that this instance connects to and serves. A host name is allowed only if it is listed itself, so that no name that a
 * peer or a client sends is ever looked up; an address if it is listed or within a listed network.
 */
public final class AllowedPeers {
    private final Set<String> names;
    private final List<Network> networks;
    private final Ticker ticker;
    private final NameLookups lookups;

    private AllowedPeers(Set<String> names, List<Network> networks, Ticker ticker) {
        this.names = Set.copyOf(names);
        this.networks = List.copyOf(networks);
        this.ticker = ticker;
        this.lookups = new NameLookups(this.names, InetAddress::getAllByName, ticker);
    }

    /**
     * @param field for errors
     * @param hosts names, addresses and networks ({@code address/bits})
     * @throws ConfigException if one of them is none
     */
    public static AllowedPeers of(String field, List<String> hosts) {
        return of(field, hosts, Ticker.system());
    }

    /** Makes the peers as {@link #of(String, List)} does, by another clock. */
    static AllowedPeers of(String field, List<String> hosts, Ticker ticker) {
        Set<String> names = new HashSet<>();
        List<Network> networks = new ArrayList<>();
        for (String host : hosts) {
            Optional<Network> network = Network.find(host);
            if (network.isPresent()) {
                networks.add(network.get());
            } else if (host.matches("[A-Za-z0-9._-]{1,253}")) {
                names.add(host.toLowerCase(Locale.ROOT));
            } else {
                throw new ConfigException(field, "has '" + host + "', must have host names, addresses or address/bits");
            }
        }
        return new AllowedPeers(names, networks, ticker);
    }

    /**
     * The default: this machine's loopback, and the networks that {@code ownHost} is in, if it is the address of one of this
     * machine's interfaces or a name that resolves to some. The name is looked up now.
     *
     * @param field that has {@code ownHost}, for errors
     */
    public static AllowedPeers byDefault(String field, String ownHost) {
        return byDefault(field, ownHost, InetAddress::getAllByName, Ticker.system());
    }

    static AllowedPeers byDefault(String field, String ownHost, NameLookups.Resolver resolver, Ticker ticker) {
        List<String> hosts = new ArrayList<>(List.of("127.0.0.0/8", "::1", "localhost", ownHost));
        try {
            InetAddress[] own = isAddress(ownHost)
                    ? new InetAddress[] {InetAddress.ofLiteral(ownHost)}
                    : resolver.addresses(ownHost);
            for (InetAddress address : own) {
                hosts.addAll(networksOf(address));
            }
        } catch (UnknownHostException e) {
            // Listening there fails later, with a better error.
            return of(field, hosts, ticker);
        } catch (SocketException e) {
            throw new ConfigException(field, "the interface of " + ownHost + " cannot be looked at", e);
        }
        return of(field, hosts, ticker);
    }

    private static List<String> networksOf(InetAddress address) throws SocketException {
        NetworkInterface own = address.isAnyLocalAddress() ? null : NetworkInterface.getByInetAddress(address);
        return own == null
                ? List.of()
                : own.getInterfaceAddresses().stream()
                        .filter(each -> each.getAddress().equals(address))
                        .map(Network::text)
                        .toList();
    }

    private static boolean isAddress(String host) {
        try {
            return InetAddress.ofLiteral(host) != null;
        } catch (IllegalArgumentException e) {
            return false;
        }
    }

    /** The union of both. */
    public AllowedPeers and(AllowedPeers more) {
        Set<String> allNames = new HashSet<>(names);
        allNames.addAll(more.names);
        List<Network> allNetworks = new ArrayList<>(networks);
        allNetworks.addAll(more.networks);
        return new AllowedPeers(allNames, allNetworks, ticker);
    }

    /** Whether a host is allowed that a peer or a client names; looks up nothing. */
    public boolean allows(String host) {
        return isAddress(host) ? allows(InetAddress.ofLiteral(host)) : names.contains(host.toLowerCase(Locale.ROOT));
    }

    /** Whether an address is listed, or in a listed network. */
    public boolean allows(InetAddress address) {
        return !address.isAnyLocalAddress()
                && !address.isMulticastAddress()
                && networks.stream().anyMatch(network -> network.contains(address));
    }

    /**
     * Whether a connection from that address is served: it is allowed, or a listed name was found to resolve to it. Does not
     * wait.
     */
    public boolean admits(InetAddress address) {
        return allows(address) || lookups.resolveTo(address);
    }

    /** Starts to resolve the listed names, for {@link #admits}. */
    void lookUp() {
        lookups.lookUp();
    }

    @Override
    public String toString() {
        return networks + " " + names;
    }
}
