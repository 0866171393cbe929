package baton.router.upstream;

import java.net.URI;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.stream.Collectors;

/** The instances of one role, used in turn; registered ones are added and removed. Any thread. */
public final class InstanceSet {
    private final Instance.Role role;
    private final int maxRunning;
    private final SlowStart slowStart;
    private final AtomicInteger turn = new AtomicInteger();
    /** Replaced as a whole. */
    private volatile List<Instance> all;

    /** @param maxRunning requests at each instance; an instance with as many is not chosen */
    public InstanceSet(Instance.Role role, List<URI> addresses, int maxRunning) {
        this(role, addresses, maxRunning, SlowStart.NONE);
    }

    /** @param slowStart of instances that are added, and of those that come up again */
    public InstanceSet(Instance.Role role, List<URI> addresses, int maxRunning, SlowStart slowStart) {
        this.role = role;
        this.maxRunning = maxRunning;
        this.slowStart = slowStart;
        this.all =
                addresses.stream().map(address -> new Instance(role, address)).toList();
        all.forEach(instance -> instance.startsBy(slowStart, false));
    }

    public Instance.Role role() {
        return role;
    }

    public List<Instance> all() {
        return all;
    }

    public int up() {
        return (int) all.stream().filter(Instance::isUp).count();
    }

    /** How many are in that state. */
    public int in(Instance.State state) {
        return (int) all.stream().filter(each -> each.currentState() == state).count();
    }

    public synchronized void add(Instance instance) {
        instance.startsBy(slowStart, true);
        List<Instance> more = new ArrayList<>(all);
        more.add(instance);
        all = List.copyOf(more);
    }

    /** Requests that the instance serves go on. */
    public synchronized void remove(Instance instance) {
        all = all.stream().filter(each -> each != instance).toList();
    }

    public synchronized void replace(Instance old, Instance by) {
        by.startsBy(slowStart, true);
        all = all.stream().map(each -> each == old ? by : each).toList();
    }

    private boolean hasRoom(Instance instance) {
        return instance.running() < maxRunning;
    }

    /** Whether there are healthy instances and each has as many requests as allowed. */
    public boolean isFull() {
        List<Instance> up = all.stream().filter(Instance::isUp).toList();
        return !up.isEmpty() && up.stream().noneMatch(this::hasRoom);
    }

    /**
     * Healthy instances that fit, have room, are not draining and not among {@code tried}: those that are not tripped, or if all are,
     * these.
     */
    public List<Instance> usable(Collection<Instance> tried, Predicate<Instance> fits) {
        List<Instance> able = new ArrayList<>();
        List<Instance> sound = new ArrayList<>();
        for (Instance instance : all) {
            if (instance.isUp()
                    && !instance.isDraining()
                    && hasRoom(instance)
                    && fits.test(instance)
                    && !tried.contains(instance)) {
                able.add(instance);
                if (!instance.isTripped()) {
                    sound.add(instance);
                }
            }
        }
        return sound.isEmpty() ? able : sound;
    }

    /** An instance at that address. */
    public Optional<Instance> find(String url) {
        return all.stream().filter(each -> each.url().equals(url)).findFirst();
    }

    /** The next healthy instance in turn that is not among {@code tried}. */
    public Optional<Instance> next(Collection<Instance> tried) {
        List<Instance> usable = usable(tried, any -> true);
        return usable.isEmpty()
                ? Optional.empty()
                : Optional.of(usable.get(Math.floorMod(turn.getAndIncrement(), usable.size())));
    }

    /**
     * Why no instance can be used, instance by instance.
     *
     * @param whyNot of an instance that does not fit
     */
    public String whyNone(Predicate<Instance> fits, Function<Instance, String> whyNot) {
        List<Instance> known = all;
        return "no healthy " + role.label() + " instance: "
                + (known.isEmpty()
                        ? "none has registered"
                        : known.stream()
                                .map(instance -> instance.url() + " ("
                                        + instance.downReason()
                                                .orElseGet(
                                                        () -> !fits.test(instance)
                                                                ? "up, but " + whyNot.apply(instance)
                                                                : instance.isDraining()
                                                                        ? "up, but draining"
                                                                        : hasRoom(instance)
                                                                                ? "up"
                                                                                : "up, but " + instance.running()
                                                                                        + " requests to it are under way, the most allowed")
                                        + ")")
                                .collect(Collectors.joining(", ")));
    }
}
