package baton.router.upstream;

import baton.kv.ConfigException;
import baton.kv.ZeroMqEndpoint;
import baton.messages.PeerAddress;
import java.net.URI;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;

/**
 * The settings of an instance: the query of its URL, as {@code http://host:port?kv_events=tcp://host:5557}.
 *
 * @param connector {@code connector}: its {@code kv_connector}, with {@code engine=baton} if it is Baton's, for an instance that does not
 *     report it
 * @param kvAddress {@code kv_address}: where a {@code P2pNcclConnector} listens, {@code ip:port}, of an instance that does not register
 * @param version {@code version} of a vLLM instance; its NIXL connector works with the same version only
 * @param streams whether prefill requests are streamed, for a server that puts {@code kv_transfer_params} into streams, as vLLM does from 0.33 on
 * @param kvEvents {@code kv_events}: where it publishes its events, if it does not report that itself
 * @param kvEventsReplay {@code kv_events_replay}: where past ones can be asked for
 */
public record InstanceSettings(
        Optional<InstanceConnector> connector,
        Optional<PeerAddress> kvAddress,
        Optional<String> version,
        boolean streams,
        Optional<ZeroMqEndpoint> kvEvents,
        Optional<ZeroMqEndpoint> kvEventsReplay) {
    public static final InstanceSettings NONE = new InstanceSettings(
            Optional.empty(), Optional.empty(), Optional.empty(), false, Optional.empty(), Optional.empty());

    private static final String CONNECTOR = "connector";
    private static final String ENGINE = "engine";
    private static final String ADDRESS = "kv_address";
    private static final String VERSION = "version";
    private static final String STREAM = "stream";

    private static final String EVENTS = "kv_events";
    private static final String REPLAY = "kv_events_replay";

    /** @throws ConfigException if a setting is unknown, is given twice or has a value that cannot be used */
    public static InstanceSettings of(String field, URI address) {
        String query = address.getRawQuery();
        if (query == null || query.isEmpty()) {
            return NONE;
        }
        Map<String, String> settings = new LinkedHashMap<>();
        for (String part : query.split("&", -1)) {
            int equals = part.indexOf('=');
            String name = equals < 0 ? part : part.substring(0, equals);
            String value = equals < 0 ? "" : URLDecoder.decode(part.substring(equals + 1), StandardCharsets.UTF_8);
            if (settings.put(name, value) != null) {
                throw new ConfigException(field, "'" + address + "' has " + name + " twice");
            }
        }
        InstanceSettings read = new InstanceSettings(
                connector(field, settings, address),
                Optional.ofNullable(settings.remove(ADDRESS))
                        .map(text -> PeerAddress.parse(field + " " + ADDRESS, text)),
                version(field, settings),
                streams(field, settings),
                endpoint(field, settings, EVENTS, address),
                endpoint(field, settings, REPLAY, address));
        if (!settings.isEmpty()) {
            throw new ConfigException(
                    field,
                    "'" + address + "' has the unknown setting "
                            + settings.keySet().iterator().next() + "; there are "
                            + String.join(", ", CONNECTOR, ENGINE, ADDRESS, VERSION, STREAM, EVENTS, REPLAY));
        }
        if (read.kvEventsReplay.isPresent() && read.kvEvents.isEmpty()) {
            throw new ConfigException(field, "'" + address + "' has " + REPLAY + " without " + EVENTS);
        }
        return read;
    }

    private static Optional<InstanceConnector> connector(String field, Map<String, String> settings, URI address) {
        Optional<String> engine = Optional.ofNullable(settings.remove(ENGINE));
        Optional<String> connector = Optional.ofNullable(settings.remove(CONNECTOR));
        if (connector.isPresent() && !connector.get().matches("[A-Za-z0-9_.]{1,128}")) {
            throw ConfigException.unsupported(field + " " + CONNECTOR, connector.get(), "the name of a kv_connector");
        }
        if (engine.isPresent() && connector.isEmpty()) {
            throw new ConfigException(field, "'" + address + "' has " + ENGINE + " without " + CONNECTOR);
        }
        boolean isBaton = switch (engine.orElse("vllm")) {
            case "baton" -> true;
            case "vllm" -> false;
            default -> throw ConfigException.unsupported(field + " " + ENGINE, engine.orElseThrow(), "vllm, baton");
        };
        return connector.map(name -> new InstanceConnector(name, isBaton));
    }

    private static Optional<String> version(String field, Map<String, String> settings) {
        Optional<String> version = Optional.ofNullable(settings.remove(VERSION));
        if (version.isPresent() && !version.get().matches("[A-Za-z0-9_.+-]{1,128}")) {
            throw ConfigException.unsupported(
                    field + " " + VERSION, version.get(), "vLLM's version, such as 0.33.0, with + as %2B");
        }
        return version;
    }

    private static boolean streams(String field, Map<String, String> settings) {
        String value = Optional.ofNullable(settings.remove(STREAM)).orElse("false");
        return switch (value) {
            case "true" -> true;
            case "false" -> false;
            default -> throw ConfigException.unsupported(field + " " + STREAM, value, "true, false");
        };
    }

    private static Optional<ZeroMqEndpoint> endpoint(
            String field, Map<String, String> settings, String name, URI address) {
        return Optional.ofNullable(settings.remove(name)).map(text -> {
            ZeroMqEndpoint endpoint = ZeroMqEndpoint.parse(field + " " + name, text);
            return endpoint.isEveryAddress() ? new ZeroMqEndpoint(address.getHost(), endpoint.port()) : endpoint;
        });
    }
}
