package baton.kv.connector;

import baton.kv.ConfigException;
import baton.kv.KvTransferConfig;
import baton.kv.Setting;
import java.io.IOException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.Supplier;

/** A connector that was compiled elsewhere, perhaps against another version of the interfaces: says so before the first request. */
record OwnConnector(String className, KvConnector inner) implements KvConnector {
    private <T> T linked(Supplier<T> call) {
        try {
            return call.get();
        } catch (LinkageError e) {
            throw OwnConnectors.notThisApi(className, e);
        }
    }

    /** @throws ConfigException if the object lacks a method of the interface, which it was then compiled without */
    private <T> T complete(Class<T> type, Supplier<T> make) {
        return linked(() -> {
            T made = make.get();
            if (made == null) {
                throw new ConfigException(
                        "kv_connector", "class " + className + " returned null for its " + type.getSimpleName());
            }
            for (Method method : type.getMethods()) {
                if (Modifier.isAbstract(method.getModifiers()) && lacks(made, method)) {
                    throw new AbstractMethodError(
                            made.getClass().getName() + " has no method " + method.toGenericString());
                }
            }
            return made;
        });
    }

    private static boolean lacks(Object made, Method method) {
        try {
            return Modifier.isAbstract(made.getClass()
                    .getMethod(method.getName(), method.getParameterTypes())
                    .getModifiers());
        } catch (NoSuchMethodException e) {
            return true;
        }
    }

    @Override
    public Set<String> names() {
        return linked(inner::names);
    }

    @Override
    public List<Setting> settings() {
        return linked(inner::settings);
    }

    @Override
    public Optional<Set<String>> settingNames() {
        return linked(inner::settingNames);
    }

    @Override
    public boolean needsHostMemory(KvTransferConfig config) {
        return linked(() -> inner.needsHostMemory(config));
    }

    @Override
    public void check(KvTransferConfig config, int ranks) {
        linked(() -> {
            inner.check(config, ranks);
            return true;
        });
    }

    @Override
    public SchedulerConnector scheduler(ConnectorContext context) {
        return complete(SchedulerConnector.class, () -> inner.scheduler(context));
    }

    @Override
    public WorkerConnector worker(ConnectorContext context, Rank rank) {
        return complete(WorkerConnector.class, () -> inner.worker(context, rank));
    }

    @Override
    public Optional<WarmUpPair> warmUpPair(KvTransferConfig config) throws IOException {
        return inner.warmUpPair(config);
    }
}
