package baton.router.policy;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.body.JsonObjectText;
import baton.router.cache.HeldBlocks;
import baton.router.flow.AutoFlow;
import baton.router.flow.ContentKeyedFlow;
import baton.router.flow.KvTransferParamsFlow;
import baton.router.metrics.RouterMetrics.LocalPrefillReason;
import baton.router.upstream.Instance;
import baton.router.upstream.InstanceSet;
import baton.router.upstream.Instances;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class ConditionalDisaggregationTest {
    private static final RoutingRequest REQUEST = request("hello");

    private final InstanceSet prefills = set(Instance.Role.PREFILL, "http://p:1", "http://p:2");
    private final InstanceSet decodes = set(Instance.Role.DECODE, "http://d:1", "http://d:2");
    private final Instances instances = new Instances(prefills, decodes);

    static InstanceSet set(Instance.Role role, String... addresses) {
        InstanceSet set = new InstanceSet(
                role, List.of(addresses).stream().map(URI::create).toList(), 10);
        set.all().forEach(Instance::markUp);
        return set;
    }

    static RoutingRequest request(String prompt) {
        return RoutingRequest.of(
                JsonObjectText.parse("body", ("{\"prompt\":\"" + prompt + "\"}").getBytes(StandardCharsets.UTF_8)),
                Optional.empty(),
                true);
    }

    private RoutingPolicy policy(PolicySettings settings) {
        return settings.policy(instances, new KvTransferParamsFlow(), HeldBlocks.UNKNOWN);
    }

    private RoutingPolicy policy(LocalPrefill local) {
        return policy(PolicySettings.DEFAULT.withLocalPrefill(local));
    }

    @Test
    void placementsTakeTheHealthyInstancesInTurn() {
        RoutingPolicy policy = policy(LocalPrefill.NEVER);
        assertThat(List.of(
                        policy.place(REQUEST, List.of()),
                        policy.place(REQUEST, List.of()),
                        policy.place(REQUEST, List.of())))
                .containsExactly(pair(0, 0), pair(1, 1), pair(0, 0));
        prefills.all().getFirst().markDown("test");
        assertThat(List.of(policy.place(REQUEST, List.of()), policy.place(REQUEST, List.of())))
                .containsExactly(pair(1, 1), pair(1, 0));
        assertThat(policy.otherPrefill(
                        REQUEST,
                        List.of(prefills.all().getLast()),
                        decodes.all().getFirst()))
                .isEmpty();
        assertThat(policy.otherDecode(
                        REQUEST,
                        List.of(decodes.all().getLast()),
                        Optional.of(prefills.all().getFirst())))
                .contains(turn(decodes.all().getFirst()));
        assertThat(policy.hasOtherDecode(
                        List.of(decodes.all().getLast()),
                        Optional.of(prefills.all().getFirst())))
                .isTrue();
        assertThat(policy.hasOtherDecode(
                        decodes.all(), Optional.of(prefills.all().getFirst())))
                .isFalse();
    }

    @ParameterizedTest
    @ValueSource(ints = {0, 1000})
    void aPlacementAvoidsDecodeInstancesThatHaveHadTheRequest(int belowBytes) {
        RoutingPolicy policy = policy(new LocalPrefill(false, belowBytes, 0, Integer.MAX_VALUE));
        List<Instance> tried = List.of(decodes.all().getFirst());
        Instance other = decodes.all().getLast();
        for (int i = 0; i < 3; i++) {
            assertThat(
                            switch (policy.place(REQUEST, tried)) {
                                case Placement.Pair pair -> pair.decode().instance();
                                case Placement.DecodeOnly alone ->
                                    alone.decode().instance();
                                case Placement.Unavailable _ -> throw new AssertionError("there is one");
                            })
                    .isEqualTo(other);
        }
        assertThat(policy.place(REQUEST, decodes.all())).isEqualTo(new Placement.Unavailable(decodes));
    }

    @Test
    void anInstanceOfBothRolesDoesNotHandOverToItself() {
        prefills.add(up(Instance.Role.PREFILL, decodes.all().getFirst().address()));
        RoutingPolicy policy = policy(LocalPrefill.NEVER);
        for (int i = 0; i < 6; i++) {
            assertThat(policy.place(REQUEST, List.of()))
                    .isInstanceOfSatisfying(
                            Placement.Pair.class,
                            pair -> assertThat(pair.prefill().instance().url())
                                    .isNotEqualTo(pair.decode().instance().url()));
        }
        prefills.all().subList(0, 2).forEach(instance -> instance.markDown("test"));
        decodes.all().getLast().markDown("test");
        assertThat(policy.otherPrefill(REQUEST, List.of(), decodes.all().getFirst()))
                .isEmpty();
        assertThat(policy.hasOtherDecode(List.of(), Optional.of(prefills.all().getLast())))
                .isFalse();
        assertThat(policy.place(REQUEST, List.of()))
                .isEqualTo(new Placement.DecodeOnly(turn(decodes.all().getFirst()), LocalPrefillReason.UNAVAILABLE));
    }

    private static Instance up(Instance.Role role, URI address) {
        Instance instance = new Instance(role, address);
        instance.markUp();
        return instance;
    }

    @Test
    void placementIsUnavailableWithoutAnInstanceOfEachRole() {
        RoutingPolicy policy = policy(LocalPrefill.NEVER);
        prefills.all().forEach(instance -> instance.markDown("test"));
        assertThat(policy.place(REQUEST, List.of())).isEqualTo(new Placement.Unavailable(prefills));
        prefills.all().forEach(Instance::markUp);
        decodes.all().forEach(instance -> instance.markDown("test"));
        assertThat(policy.place(REQUEST, List.of())).isEqualTo(new Placement.Unavailable(decodes));
    }

    @Test
    void placementIsALocalPrefillForShortPromptsAndAsFallback() {
        Choice decode = turn(decodes.all().getFirst());
        assertThat(policy(new LocalPrefill(false, 8, 0, Integer.MAX_VALUE)).place(REQUEST, List.of()))
                .isEqualTo(new Placement.DecodeOnly(decode, LocalPrefillReason.SHORT));
        assertThat(policy(new LocalPrefill(false, 7, 0, Integer.MAX_VALUE)).place(REQUEST, List.of()))
                .isInstanceOf(Placement.Pair.class);
        // No connector is known, so no pair is.
        assertThat(PolicySettings.DEFAULT
                        .withLocalPrefill(new LocalPrefill(true, 0, 0, Integer.MAX_VALUE))
                        .policy(instances, new AutoFlow(), HeldBlocks.UNKNOWN)
                        .place(REQUEST, List.of()))
                .isEqualTo(new Placement.DecodeOnly(decode, LocalPrefillReason.UNAVAILABLE));
    }

    @Test
    void aBodyWithoutAPromptIsNotShort() {
        JsonObjectText body = JsonObjectText.parse("body", "{\"n\":1}".getBytes(StandardCharsets.UTF_8));
        for (boolean digests : new boolean[] {true, false}) {
            RoutingRequest request = RoutingRequest.of(body, Optional.empty(), digests);
            assertThat(policy(new LocalPrefill(false, 1000, 0, Integer.MAX_VALUE))
                            .place(request, List.of()))
                    .isInstanceOf(Placement.Pair.class);
        }
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            value = {"'a' | 0.5", "[1, 2] | 0.5", "['a', 'b'] | 1", "[[1], [2]] | 1"})
    void severalPromptsOfARequestStayWhole(String prompt, double share) {
        JsonObjectText body = JsonObjectText.parse(
                "body", ("{\"prompt\": " + prompt.replace('\'', '"') + "}").getBytes(StandardCharsets.UTF_8));
        RoutingPolicy policy = PolicySettings.DEFAULT
                .withLocalPrefill(LocalPrefill.NEVER.withSplit(SplitPrompts.parse("0.5")))
                .policy(instances, new ContentKeyedFlow(), HeldBlocks.UNKNOWN);
        assertThat(policy.place(RoutingRequest.of(body, Optional.empty(), false), List.of()))
                .isInstanceOfSatisfying(
                        Placement.Pair.class, pair -> assertThat(pair.share()).isEqualTo(share));
    }

    /** Digests take time, so they are made for the policy that looks at them. */
    @Test
    void onlyThePrefixPolicyNeedsDigests() {
        assertThat(policy(LocalPrefill.NEVER).needsPrefix()).isFalse();
        assertThat(policy(new PolicySettings(InTurn.NAME, PrefixAware.NAME, 10, LocalPrefill.NEVER))
                        .needsPrefix())
                .isTrue();
        JsonObjectText body = JsonObjectText.parse(
                "body", ("{\"prompt\":\"" + "x".repeat(1000) + "\"}").getBytes(StandardCharsets.UTF_8));
        RoutingRequest without = RoutingRequest.of(body, Optional.empty(), false);
        assertThat(without.prefix().chunks()).isEmpty();
        assertThat(without.prefix().promptBytes())
                .isEqualTo(
                        RoutingRequest.of(body, Optional.empty(), true).prefix().promptBytes())
                .isEqualTo(1002);
    }

    @Test
    void placementIsALocalPrefillWhenAllPrefillInstancesAreBusy() {
        RoutingPolicy policy = policy(new LocalPrefill(false, 0, 0, 2));
        prefills.all().forEach(prefill -> {
            Runnable _ = prefill.begin();
            Runnable _ = prefill.begin();
        });
        assertThat(policy.place(REQUEST, List.of()))
                .isInstanceOfSatisfying(
                        Placement.DecodeOnly.class,
                        local -> assertThat(local.reason()).isEqualTo(LocalPrefillReason.BUSY));
        InstanceSet set = prefills;
        set.replace(set.all().getFirst(), up("http://p:3"));
        assertThat(policy.place(REQUEST, List.of())).isInstanceOf(Placement.Pair.class);
    }

    @Test
    void placementIsALocalPrefillWhenTheDecodeInstanceHasNearlyAllOfThePrompt() {
        RoutingPolicy policy = policy(new PolicySettings(
                InTurn.NAME, PrefixAware.NAME, 1000, new LocalPrefill(false, 0, 600, Integer.MAX_VALUE)));
        String prompt = "word ".repeat(500);
        assertThat(policy.place(request(prompt), List.of())).isInstanceOf(Placement.Pair.class);
        assertThat(policy.place(request(prompt + "and more"), List.of()))
                .isInstanceOfSatisfying(Placement.DecodeOnly.class, local -> {
                    assertThat(local.reason()).isEqualTo(LocalPrefillReason.CACHED);
                    assertThat(local.decode().why()).isEqualTo(Choice.Why.PREFIX);
                    assertThat(local.decode().known())
                            .isEqualTo(2501 / PromptPrefix.CHUNK_BYTES * PromptPrefix.CHUNK_BYTES);
                });
        assertThat(policy.place(request(prompt + "and more".repeat(100)), List.of()))
                .isInstanceOf(Placement.Pair.class);
    }

    private static Instance up(String address) {
        Instance instance = new Instance(Instance.Role.PREFILL, URI.create(address));
        instance.markUp();
        return instance;
    }

    private static Choice turn(Instance instance) {
        return Choice.of(instance, Choice.Why.TURN);
    }

    private Placement pair(int prefill, int decode) {
        return new Placement.Pair(
                turn(prefills.all().get(prefill)), turn(decodes.all().get(decode)), 1, Optional.empty());
    }
}
