package baton.router;

import java.net.URI;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;

/** The instances of one role, used in turn. Any thread. */
final class InstanceSet {
    private final Instance.Role role;
    private final List<Instance> all;
    private final AtomicInteger turn = new AtomicInteger();

    InstanceSet(Instance.Role role, List<URI> addresses) {
        this.role = role;
        this.all =
                addresses.stream().map(address -> new Instance(role, address)).toList();
    }

    Instance.Role role() {
        return role;
    }

    List<Instance> all() {
        return all;
    }

    int up() {
        return (int) all.stream().filter(Instance::isUp).count();
    }

    /** The next healthy instance in turn that is not among {@code tried}. */
    Optional<Instance> next(Collection<Instance> tried) {
        List<Instance> usable = all.stream()
                .filter(instance -> instance.isUp() && !tried.contains(instance))
                .toList();
        return usable.isEmpty()
                ? Optional.empty()
                : Optional.of(usable.get(Math.floorMod(turn.getAndIncrement(), usable.size())));
    }

    /** Says of each instance why it cannot be used. */
    String whyNone() {
        return "no healthy " + role.label + " instance: "
                + all.stream()
                        .map(instance ->
                                instance.url() + " (" + instance.downReason().orElse("up") + ")")
                        .collect(Collectors.joining(", "));
    }
}
