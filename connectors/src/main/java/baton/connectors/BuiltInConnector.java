package baton.connectors;

import baton.kv.Setting;
import baton.kv.connector.CacheSource;
import baton.kv.connector.KvConnector;
import java.util.List;
import java.util.Set;

/** A connector with the names, the settings and the source that it was made with. */
public abstract class BuiltInConnector implements KvConnector {
    private final Set<String> names;
    private final List<Setting> settings;
    private final CacheSource source;

    protected BuiltInConnector(Set<String> names, List<Setting> settings, CacheSource source) {
        this.names = names;
        this.settings = settings;
        this.source = source;
    }

    @Override
    public final Set<String> names() {
        return names;
    }

    @Override
    public final List<Setting> settings() {
        return settings;
    }

    @Override
    public final CacheSource source() {
        return source;
    }
}
