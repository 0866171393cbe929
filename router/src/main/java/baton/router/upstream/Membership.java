package baton.router.upstream;

import baton.kv.ConfigException;
import java.net.URI;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Adds instances to a router and takes them away while it runs. Any thread. */
public final class Membership {
    private static final Logger log = LoggerFactory.getLogger(Membership.class);

    private final Instances instances;
    private final HealthProbe probe;
    /** The instances that changed their role, by the role in which they were added and their URL. */
    private final Set<String> moved = ConcurrentHashMap.newKeySet();

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

    /** Takes an instance out of a role as it has the other one now. A source that names it in the role does not add it again. */
    public void moveFrom(Instance.Role role, String url) {
        if (find(role, url).isEmpty()) {
            return;
        }
        // Marked before it is removed, so that no source adds it in between.
        if (!moved.remove(key(role.other(), url))) {
            moved.add(key(role, url));
        }
        remove(role, url);
    }

    /** Whether an instance that was added in a role has the other one now. */
    boolean isMoved(Instance.Role role, String url) {
        return moved.contains(key(role, url));
    }

    /** A source names an instance in a role no longer: takes it away, from the other role if it has that now. */
    void forget(Instance.Role role, String url) {
        remove(moved.remove(key(role, url)) ? role.other() : role, url);
    }

    private static String key(Instance.Role role, String url) {
        return role.label() + " " + url;
    }

    /** Instances of the same role that take requests. */
    public List<Instance> others(Instance instance) {
        return instances.of(instance.role()).usable(List.of(instance), _ -> true);
    }

    public Optional<Instance> find(Instance.Role role, String url) {
        return instances.of(role).find(url);
    }

    /** Whether an instance of any role has that address. */
    public boolean isKnown(String url) {
        return instances.sets().stream().anyMatch(set -> set.find(url).isPresent());
    }
}
