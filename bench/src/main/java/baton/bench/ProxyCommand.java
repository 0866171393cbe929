package baton.bench;

import baton.kv.ConfigException;
import java.util.Arrays;
import java.util.List;

/**
 * How to start a P/D proxy to measure beside the router. In {@code command}, words separated by spaces, <code>{port}</code> is where
 * the proxy shall listen on 127.0.0.1, <code>{prefill}</code> and <code>{decode}</code> are the ports of the instances.
 *
 * @param name in the report
 */
public record ProxyCommand(String name, String command) {

    /**
     * Reads {@code NAME=COMMAND}.
     *
     * @throws ConfigException if it has another form, the name is one of the bench's own, or the command does not say where to listen
     */
    public static ProxyCommand parse(String text) {
        int equals = text.indexOf('=');
        if (equals < 1 || text.substring(equals + 1).isBlank()) {
            throw new ConfigException("beside", "is '" + text + "', must be NAME=COMMAND");
        }
        ProxyCommand proxy = new ProxyCommand(text.substring(0, equals), text.substring(equals + 1));
        if (List.of(RouterBench.DIRECT, RouterBench.ROUTER, RouterBench.NGINX).contains(proxy.name)) {
            throw new ConfigException("beside", "names a proxy '" + proxy.name + "', which the report has already");
        }
        for (String place : List.of("{port}", "{decode}")) {
            if (!proxy.command.contains(place)) {
                throw new ConfigException("beside", "is '" + text + "', the command must have " + place);
            }
        }
        return proxy;
    }

    List<String> arguments(int port, int prefillPort, int decodePort) {
        return Arrays.stream(command.strip().split("\\s+"))
                .map(word -> word.replace("{port}", Integer.toString(port))
                        .replace("{prefill}", Integer.toString(prefillPort))
                        .replace("{decode}", Integer.toString(decodePort)))
                .toList();
    }
}
