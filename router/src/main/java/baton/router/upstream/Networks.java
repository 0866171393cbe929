package baton.router.upstream;

import baton.kv.ConfigException;
import java.net.InetAddress;
import java.util.List;

/** IP networks. */
public record Networks(List<Network> all) {

    /** @param bits how many of the address's first bits count */
    public record Network(byte[] address, int bits) {
        public boolean contains(byte[] other) {
            if (other.length != address.length) {
                return false;
            }
            for (int i = 0; i < bits; i++) {
                if (((address[i / 8] ^ other[i / 8]) & (0x80 >> (i % 8))) != 0) {
                    return false;
                }
            }
            return true;
        }
    }

    /**
     * @param field the setting's name, for errors
     * @param texts in CIDR notation, or addresses
     * @throws ConfigException if one is neither
     */
    public static Networks parse(String field, List<String> texts) {
        return new Networks(texts.stream().map(text -> network(field, text)).toList());
    }

    private static Network network(String field, String text) {
        String[] parts = text.split("/", 2);
        try {
            byte[] address = InetAddress.ofLiteral(parts[0]).getAddress();
            int bits = parts.length == 1 ? address.length * 8 : Integer.parseInt(parts[1]);
            if (bits >= 0 && bits <= address.length * 8) {
                return new Network(address, bits);
            }
        } catch (IllegalArgumentException e) {
            // Reported below.
        }
        throw ConfigException.unsupported(field, text, "a network as 10.1.0.0/16 or fd00::/8, or an address");
    }

    /** Whether the address is in one of these networks. */
    public boolean contain(InetAddress address) {
        byte[] bytes = address.getAddress();
        return all.stream().anyMatch(network -> network.contains(bytes));
    }
}
