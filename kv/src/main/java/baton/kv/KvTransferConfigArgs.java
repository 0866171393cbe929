package baton.kv;

import java.util.List;
import java.util.Optional;

/**
 * The command-line forms of a {@link KvTransferConfig}, which are those of all of vLLM's options with a JSON object:
 *
 * <pre>
 * --kv-transfer-config '{"kv_connector": "X", ...}'
 * --kv-transfer-config.kv_connector X                                     one field
 * --kv-transfer-config.kv_connector_extra_config.a.b 3                    objects on the way are made
 * --kv-transfer-config.kv_connector_extra_config.backends+ UCX,LIBFABRIC  appends to a list
 * </pre>
 *
 * @param config the configuration, if any of these options was given
 * @param rest all other arguments, in order
 */
public record KvTransferConfigArgs(Optional<KvTransferConfig> config, List<String> rest) {
    public KvTransferConfigArgs {
        rest = List.copyOf(rest);
    }

    /**
     * Takes the options of the KV transfer out of a command line. Arguments after {@code --} are left alone.
     *
     * @throws ConfigException if an option lacks its value, or the configuration is wrong
     */
    public static KvTransferConfigArgs parse(List<String> args) {
        JsonObjectArgs parsed = JsonObjectArgs.parse("--kv-transfer-config", KvTransferConfig::isText, args);
        return new KvTransferConfigArgs(
                parsed.object().map(object -> KvTransferConfig.fromJson(JsonFields.of("", object))), parsed.rest());
    }
}
