package baton.connectors.multi;

import baton.kv.ConfigException;
import baton.kv.KvTransferConfig;
import baton.kv.connector.KvConnector;
import java.util.function.Supplier;

/**
 * One of the connectors of a {@link MultiConnector}.
 *
 * @param label its {@code kv_connector}, with its index if another child has the same
 * @param path of its configuration, for errors
 * @param config its own
 */
record Child(String label, String path, KvConnector connector, KvTransferConfig config) {
    /** Does something of the child's; an error about a setting names the setting's whole path. */
    <T> T within(Supplier<T> call) {
        return within(path, call);
    }

    static <T> T within(String path, Supplier<T> call) {
        try {
            return call.get();
        } catch (ConfigException e) {
            String message = String.valueOf(e.getMessage());
            String about = e.field() + ": ";
            throw new ConfigException(
                    path + "." + e.field(), message.startsWith(about) ? message.substring(about.length()) : message, e);
        }
    }
}
