package baton.router.policy;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.body.JsonObjectText;
import baton.router.metrics.RouterMetrics.LocalPrefillReason;
import baton.router.upstream.Instance;
import baton.router.upstream.InstanceSet;
import baton.router.upstream.Instances;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.junit.jupiter.api.Test;

class RoundRobinTest {
    private static final JsonObjectText BODY =
            JsonObjectText.parse("body", "{\"prompt\":\"hello\"}".getBytes(StandardCharsets.UTF_8));

    private final InstanceSet prefills = set(Instance.Role.PREFILL, "http://p:1", "http://p:2");
    private final InstanceSet decodes = set(Instance.Role.DECODE, "http://d:1", "http://d:2");
    private final Instances instances = new Instances(prefills, decodes);

    private static InstanceSet set(Instance.Role role, String... addresses) {
        InstanceSet set = new InstanceSet(
                role, List.of(addresses).stream().map(URI::create).toList(), 10);
        set.all().forEach(Instance::markUp);
        return set;
    }

    @Test
    void placementsTakeTheHealthyInstancesInTurn() {
        RoutingPolicy policy = new RoundRobin(instances, any -> true, false, 0);
        assertThat(List.of(policy.place(BODY), policy.place(BODY), policy.place(BODY)))
                .containsExactly(pair(0, 0), pair(1, 1), pair(0, 0));
        prefills.all().getFirst().markDown("test");
        assertThat(List.of(policy.place(BODY), policy.place(BODY))).containsExactly(pair(1, 1), pair(1, 0));
        assertThat(policy.otherPrefill(List.of(prefills.all().getLast()))).isEmpty();
        assertThat(policy.otherDecode(List.of(decodes.all().getLast()), true))
                .contains(decodes.all().getFirst());
    }

    @Test
    void placementIsUnavailableWithoutAnInstanceOfEachRole() {
        RoutingPolicy policy = new RoundRobin(instances, any -> true, false, 0);
        prefills.all().forEach(instance -> instance.markDown("test"));
        assertThat(policy.place(BODY)).isEqualTo(new Placement.Unavailable(prefills));
        prefills.all().forEach(Instance::markUp);
        decodes.all().forEach(instance -> instance.markDown("test"));
        assertThat(policy.place(BODY)).isEqualTo(new Placement.Unavailable(decodes));
    }

    @Test
    void placementIsALocalPrefillForShortPromptsAndAsFallback() {
        Instance decode = decodes.all().getFirst();
        assertThat(new RoundRobin(instances, any -> true, false, 8).place(BODY))
                .isEqualTo(new Placement.DecodeOnly(decode, LocalPrefillReason.SHORT));
        assertThat(new RoundRobin(instances, any -> true, false, 7).place(BODY)).isInstanceOf(Placement.Pair.class);
        assertThat(new RoundRobin(instances, instance -> instance.role() == Instance.Role.DECODE, true, 0).place(BODY))
                .isEqualTo(new Placement.DecodeOnly(decode, LocalPrefillReason.UNAVAILABLE));
    }

    private Placement pair(int prefill, int decode) {
        return new Placement.Pair(prefills.all().get(prefill), decodes.all().get(decode));
    }
}
