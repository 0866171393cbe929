package baton.router.upstream;

import baton.kv.ConfigException;
import java.net.URI;
import java.util.Optional;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Adds instances to a router and takes them away while it runs. Any thread. */
public final class Membership {
    private static final Logger log = LoggerFactory.getLogger(Membership.class);

    private final Instances instances;
    private final HealthProbe probe;
    private volatile OwnAddress router;

    /** @param router where the router takes requests: no instance may have that address */
    public Membership(Instances instances, HealthProbe probe, OwnAddress router) {
        this.instances = instances;
        this.probe = probe;
        this.router = router;
    }

    /** The router's port is known. */
    public void listeningAt(OwnAddress address) {
        router = address;
    }

    /**
     * Adds an instance, which gets requests once its health is known. May look a name up.
     *
     * @return empty if it is known already
     * @throws ConfigException if its address is the router's
     */
    public Optional<Instance> add(Instance.Role role, URI address) {
        Instance instance = new Instance(role, address);
        if (router.isAt(instance.host(), instance.port())) {
            throw new ConfigException(
                    role.label(),
                    "'" + address + "' is this router's own address: requests would go round in a circle");
        }
        InstanceSet set = instances.of(role);
        synchronized (this) {
            if (set.find(instance.url()).isPresent()) {
                return Optional.empty();
            }
            set.add(instance);
        }
        probe.watch(instance);
        log.info("{} is added", instance);
        return Optional.of(instance);
    }

    /** Takes an instance away; requests that it serves go on. Whether it was known. */
    public synchronized boolean remove(Instance.Role role, String url) {
        InstanceSet set = instances.of(role);
        Optional<Instance> known = set.find(url);
        known.ifPresent(instance -> {
            probe.forget(instance);
            set.remove(instance);
            log.info("{} is removed", instance);
        });
        return known.isPresent();
    }

    public Optional<Instance> find(Instance.Role role, String url) {
        return instances.of(role).find(url);
    }
}
