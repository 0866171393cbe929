package baton.router.upstream;

import java.util.List;

/** All instances of a router, by role. */
public record Instances(InstanceSet prefills, InstanceSet decodes) {
    public InstanceSet of(Instance.Role role) {
        return switch (role) {
            case PREFILL -> prefills;
            case DECODE -> decodes;
        };
    }

    /** The instances of the other role that take requests; all of that role if none does. */
    public List<Instance> others(InstanceSet set) {
        List<Instance> all = (set == prefills ? decodes : prefills).all();
        List<Instance> usable = all.stream()
                .filter(instance -> instance.isUp() && !instance.isDraining())
                .toList();
        return usable.isEmpty() ? all : usable;
    }

    public List<InstanceSet> sets() {
        return List.of(prefills, decodes);
    }
}
