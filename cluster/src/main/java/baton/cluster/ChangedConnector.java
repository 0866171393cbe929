package baton.cluster;

import baton.kv.KvRole;
import java.util.List;
import java.util.stream.Stream;

/**
 * A connector with another flow or more options.
 *
 * @param more options of {@code serve}, behind those of {@code from}
 */
record ChangedConnector(ClusterConnector from, String flow, List<String> more) implements ClusterConnector {
    ChangedConnector {
        more = List.copyOf(more);
    }

    @Override
    public String kvConnector() {
        return from.kvConnector();
    }

    @Override
    public List<String> settings(KvRole role, Place place) {
        return Stream.concat(from.settings(role, place).stream(), more.stream()).toList();
    }

    @Override
    public boolean listens() {
        return from.listens();
    }

    @Override
    public boolean registers() {
        return from.registers();
    }
}
