package baton.messages;

import baton.kv.ConfigException;
import java.net.InetAddress;
import java.net.InterfaceAddress;
import java.util.Optional;

/**
 * An IP network.
 *
 * @param bits how many of the address's first bits count
 */
public record Network(InetAddress address, int bits) {
    /** Reads CIDR notation, or an address, which is a network of one host; empty if the text is neither. */
    public static Optional<Network> find(String text) {
        String[] parts = text.split("/", 2);
        try {
            InetAddress address = InetAddress.ofLiteral(parts[0]);
            int most = address.getAddress().length * Byte.SIZE;
            int bits = parts.length == 1 ? most : Integer.parseInt(parts[1]);
            return bits < 0 || bits > most ? Optional.empty() : Optional.of(new Network(address, bits));
        } catch (IllegalArgumentException e) {
            return Optional.empty();
        }
    }

    /**
     * As {@link #find}.
     *
     * @param field the setting's name, for errors
     * @throws ConfigException if the text is neither
     */
    public static Network parse(String field, String text) {
        return find(text)
                .orElseThrow(() -> ConfigException.unsupported(
                        field, text, "a network as 10.1.0.0/16 or fd00::/8, or an address"));
    }

    /** The network of an interface in CIDR notation. */
    public static String text(InterfaceAddress own) {
        return own.getAddress().getHostAddress().replaceFirst("%.*", "") + "/" + own.getNetworkPrefixLength();
    }

    public boolean contains(InetAddress other) {
        byte[] own = address.getAddress();
        byte[] bytes = other.getAddress();
        if (bytes.length != own.length) {
            return false;
        }
        for (int i = 0; i < bits; i++) {
            if (((own[i / 8] ^ bytes[i / 8]) & (0x80 >> (i % 8))) != 0) {
                return false;
            }
        }
        return true;
    }

    @Override
    public String toString() {
        return address.getHostAddress() + "/" + bits;
    }
}
