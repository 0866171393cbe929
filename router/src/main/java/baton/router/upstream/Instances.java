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

    public List<InstanceSet> sets() {
        return List.of(prefills, decodes);
    }
}
