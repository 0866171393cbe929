package baton.router.policy;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.router.body.JsonObjectText;
import baton.router.cache.HeldBlocks;
import baton.router.upstream.Instance;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.Test;

class InstanceChooserTest {
    private static final int RECORDED = 100_000;

    private static List<Instance> instances(int count) {
        List<Instance> instances = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Instance instance = new Instance(Instance.Role.PREFILL, URI.create("http://p:" + (i + 1)));
            instance.markUp();
            instances.add(instance);
        }
        return instances;
    }

    private static RoutingRequest chat(String fields, String... contents) {
        StringBuilder messages = new StringBuilder();
        for (String content : contents) {
            messages.append(messages.isEmpty() ? "" : ",")
                    .append("{\"role\":\"user\",\"content\":\"" + content + "\"}");
        }
        String body = "{" + fields + "\"messages\":[" + messages + "]}";
        return RoutingRequest.of(
                JsonObjectText.parse("body", body.getBytes(StandardCharsets.UTF_8)), Optional.empty(), true);
    }

    @Test
    void unknownPoliciesAreRefusedByName() {
        assertThatThrownBy(() -> InstanceChooser.named("policy", "random", 1, HeldBlocks.UNKNOWN))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("'random'")
                .hasMessageContaining("round_robin, least_loaded, power_of_two, session, prefix");
        assertThatThrownBy(() -> new PolicySettings("round_robin", "fastest", 1, LocalPrefill.NEVER))
                .hasMessageContaining("decode policy");
        assertThatThrownBy(() -> new PolicySettings(
                        "prefix", "round_robin", 1, new LocalPrefill(false, 0, 100, Integer.MAX_VALUE)))
                .hasMessageContaining("local prefill uncached threshold");
    }

    @Test
    void leastLoadedTakesTheOneWithTheFewestRequestsAndSharesEvenly() {
        List<Instance> instances = instances(3);
        InstanceChooser chooser = InstanceChooser.named("policy", LeastLoaded.NAME, RECORDED, HeldBlocks.UNKNOWN);
        for (int i = 0; i < 9; i++) {
            Runnable _ =
                    chooser.choose(instances, RoutingRequest.NONE).instance().begin();
        }
        assertThat(instances).allSatisfy(each -> assertThat(each.running()).isEqualTo(3));
        Runnable end = instances.get(1).begin();
        Runnable _ = instances.get(2).begin();
        end.run();
        Runnable _ = instances.get(0).begin();
        assertThat(chooser.choose(instances, RoutingRequest.NONE).instance()).isSameAs(instances.get(1));
    }

    @Test
    void powerOfTwoNeverTakesTheBusiestAndTakesEveryOther() {
        List<Instance> instances = instances(4);
        InstanceChooser chooser = InstanceChooser.named("policy", PowerOfTwoChoices.NAME, RECORDED, HeldBlocks.UNKNOWN);
        Runnable _ = instances.get(2).begin();
        Map<Instance, Integer> counts = new HashMap<>();
        for (int i = 0; i < 3000; i++) {
            Choice choice = chooser.choose(instances, RoutingRequest.NONE);
            assertThat(choice.why()).isEqualTo(Choice.Why.LOAD);
            counts.merge(choice.instance(), 1, Integer::sum);
        }
        assertThat(counts).hasSize(3).doesNotContainKey(instances.get(2));
        assertThat(counts.values()).allSatisfy(count -> assertThat(count).isBetween(800, 1200));
        List<Instance> one = instances(1);
        assertThat(chooser.choose(one, RoutingRequest.NONE).instance()).isSameAs(one.getFirst());
    }

    @Test
    void powerOfTwoComparesRequestsUnderWayForEachShare() {
        List<Instance> instances = instances(2);
        instances.get(0).weight(3);
        InstanceChooser chooser = InstanceChooser.named("policy", PowerOfTwoChoices.NAME, RECORDED, HeldBlocks.UNKNOWN);
        for (int i = 0; i < 40; i++) {
            Runnable _ =
                    chooser.choose(instances, RoutingRequest.NONE).instance().begin();
        }
        assertThat(instances.get(0).running()).isBetween(29, 31);
    }

    @Test
    void sessionsStayWhereTheyAreWhenAnotherInstanceGoes() {
        List<Instance> instances = instances(4);
        InstanceChooser chooser = InstanceChooser.named("policy", SessionSticky.NAME, RECORDED, HeldBlocks.UNKNOWN);
        Map<String, Instance> before = new HashMap<>();
        Map<Instance, Integer> share = new HashMap<>();
        for (int i = 0; i < 1000; i++) {
            RoutingRequest request = new RoutingRequest(RoutingRequest.NONE.prefix(), Optional.of("session-" + i));
            Choice choice = chooser.choose(instances, request);
            assertThat(choice.why()).isEqualTo(Choice.Why.SESSION);
            before.put("session-" + i, choice.instance());
            share.merge(choice.instance(), 1, Integer::sum);
        }
        assertThat(share.values())
                .hasSize(4)
                .allSatisfy(count -> assertThat(count).isBetween(180, 320));
        Instance gone = instances.remove(1);
        before.forEach((session, instance) -> {
            RoutingRequest request = new RoutingRequest(RoutingRequest.NONE.prefix(), Optional.of(session));
            Instance now = chooser.choose(instances, request).instance();
            if (instance == gone) {
                assertThat(now).isNotSameAs(gone);
            } else {
                assertThat(now).isSameAs(instance);
            }
        });
        assertThat(chooser.choose(instances, RoutingRequest.NONE).why()).isEqualTo(Choice.Why.LOAD);
    }

    @Test
    void sharesOfInstancesCountForEveryPolicy() {
        List<Instance> instances = instances(3);
        instances.get(0).weight(6);
        instances.get(1).weight(3);
        instances.get(2).weight(1);
        Map<String, Map<Instance, Integer>> chosen = new HashMap<>();
        for (String policy : List.of(InTurn.NAME, LeastLoaded.NAME, SessionSticky.NAME)) {
            InstanceChooser chooser = InstanceChooser.named("policy", policy, RECORDED, HeldBlocks.UNKNOWN);
            Map<Instance, Integer> counts = new HashMap<>();
            for (int i = 0; i < 2000; i++) {
                RoutingRequest request = new RoutingRequest(RoutingRequest.NONE.prefix(), Optional.of("session-" + i));
                counts.merge(chooser.choose(instances, request).instance(), 1, Integer::sum);
            }
            chosen.put(policy, counts);
        }
        chosen.forEach((policy, counts) -> {
            assertThat(counts.get(instances.get(0))).as(policy).isBetween(1100, 1300);
            assertThat(counts.get(instances.get(1))).as(policy).isBetween(520, 680);
            assertThat(counts.get(instances.get(2))).as(policy).isBetween(140, 260);
        });
    }

    @Test
    void leastLoadedComparesRequestsUnderWayForEachShare() {
        List<Instance> instances = instances(2);
        instances.get(0).weight(3);
        InstanceChooser chooser = InstanceChooser.named("policy", LeastLoaded.NAME, RECORDED, HeldBlocks.UNKNOWN);
        for (int i = 0; i < 40; i++) {
            Runnable _ =
                    chooser.choose(instances, RoutingRequest.NONE).instance().begin();
        }
        assertThat(instances.get(0).running()).isBetween(29, 31);
    }

    @Test
    void aSessionMovesToAnInstanceWithAGrowingShareAndNotBetweenOthers() {
        List<Instance> instances = instances(3);
        InstanceChooser chooser = InstanceChooser.named("policy", SessionSticky.NAME, RECORDED, HeldBlocks.UNKNOWN);
        List<Instance> before = new ArrayList<>();
        for (double weight : new double[] {1, 2}) {
            instances.get(0).weight(weight);
            for (int i = 0; i < 300; i++) {
                RoutingRequest request = new RoutingRequest(RoutingRequest.NONE.prefix(), Optional.of("session-" + i));
                Instance now = chooser.choose(instances, request).instance();
                if (before.size() < 300) {
                    before.add(now);
                } else if (now != before.get(i)) {
                    assertThat(now).isSameAs(instances.get(0));
                }
            }
        }
    }

    @Test
    void theSessionIsTheHeaderOrElseTheUserField() {
        assertThat(chat("\"user\":\"u1\",", "x").session()).contains("\"u1\"");
        assertThat(RoutingRequest.of(
                                JsonObjectText.parse("body", "{\"user\":\"u1\"}".getBytes(StandardCharsets.UTF_8)),
                                Optional.of("s1"),
                                false)
                        .session())
                .contains("s1");
        assertThat(chat("", "x").session()).isEmpty();
    }

    @Test
    void prefixTakesTheInstanceThatWasSentMostOfThePrompt() {
        List<Instance> instances = instances(4);
        InstanceChooser chooser = InstanceChooser.named("policy", PrefixAware.NAME, RECORDED, HeldBlocks.UNKNOWN);
        RoutingRequest first = chat("\"model\":\"m\",", "a".repeat(1000));
        Choice cold = chooser.choose(instances, first);
        assertThat(cold.why()).isEqualTo(Choice.Why.LOAD);
        chooser.sent(cold.instance(), first);
        Choice warm = chooser.choose(instances, chat("\"model\":\"m\",", "a".repeat(1000), "b".repeat(1000)));
        assertThat(warm.instance()).isSameAs(cold.instance());
        assertThat(warm.why()).isEqualTo(Choice.Why.PREFIX);
        assertThat(warm.known())
                .isEqualTo(first.prefix().chunks().length * PromptPrefix.CHUNK_BYTES)
                .isPositive();
        String input = "{\"input\":\"" + "a".repeat(1000) + "\"}";
        assertThat(PromptPrefix.of(JsonObjectText.parse("body", input.getBytes(StandardCharsets.UTF_8)))
                        .chunks())
                .hasSize(3);
        // Fields that separate KV caches separate prefixes.
        for (String fields :
                List.of("\"model\":\"n\",", "\"model\":\"m\",\"cache_salt\":\"s\",", "\"model\":\"m\",\"tools\":[],")) {
            assertThat(chooser.choose(instances, chat(fields, "a".repeat(1000))).known())
                    .isZero();
        }
    }

    @Test
    void prefixLeavesAnInstanceThatIsMuchBusierThanAnother() {
        List<Instance> instances = instances(2);
        InstanceChooser chooser = InstanceChooser.named("policy", PrefixAware.NAME, RECORDED, HeldBlocks.UNKNOWN);
        RoutingRequest request = chat("", "a".repeat(1000));
        Instance has = instances.get(0);
        chooser.sent(has, request);
        List<Runnable> running = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            running.add(has.begin());
            assertThat(chooser.choose(instances, request).instance()).isSameAs(has);
        }
        running.add(has.begin());
        assertThat(chooser.choose(instances, request)).isEqualTo(Choice.of(instances.get(1), Choice.Why.LOAD));
        running.forEach(Runnable::run);
        assertThat(chooser.choose(instances, request).instance()).isSameAs(has);
    }

    @Test
    void anInstanceThatComesUpAgainHasNoPrefix() {
        List<Instance> instances = instances(2);
        InstanceChooser chooser = InstanceChooser.named("policy", PrefixAware.NAME, RECORDED, HeldBlocks.UNKNOWN);
        RoutingRequest request = chat("", "a".repeat(1000));
        chooser.sent(instances.getFirst(), request);
        assertThat(chooser.choose(instances, request).known()).isPositive();
        instances.getFirst().markDown("test");
        instances.getFirst().markUp();
        assertThat(chooser.choose(instances, request).known()).isZero();
    }

    /** Conversations of several turns in random order: nearly all possible cache hits are hits. */
    @Test
    void conversationsFindTheirPrefixes() {
        Random random = new Random(1);
        List<Instance> instances = instances(4);
        InstanceChooser chooser = InstanceChooser.named("policy", PrefixAware.NAME, RECORDED, HeldBlocks.UNKNOWN);
        List<List<String>> conversations = new ArrayList<>();
        for (int i = 0; i < 200; i++) {
            conversations.add(new ArrayList<>(List.of("system prompt ".repeat(40))));
        }
        long known = 0;
        long possible = 0;
        List<Runnable> running = new ArrayList<>();
        Map<List<String>, Integer> sent = new HashMap<>();
        for (int i = 0; i < 3000; i++) {
            List<String> conversation = conversations.get(random.nextInt(conversations.size()));
            conversation.add("turn " + random.nextLong() + " word".repeat(random.nextInt(200)));
            RoutingRequest request = chat("", conversation.toArray(String[]::new));
            Choice choice = chooser.choose(instances, request);
            chooser.sent(choice.instance(), request);
            known += choice.known();
            possible += sent.getOrDefault(conversation.subList(0, 2), 0);
            sent.put(
                    List.copyOf(conversation.subList(0, 2)),
                    request.prefix().chunks().length * PromptPrefix.CHUNK_BYTES);
            running.add(choice.instance().begin());
            if (running.size() > 16) {
                running.remove(random.nextInt(running.size())).run();
            }
        }
        assertThat((double) known / possible).isGreaterThan(0.95);
    }

    @Test
    void theRecordKeepsTheLastUsedEntriesWithinItsCapacity() {
        Instance instance = instances(1).getFirst();
        PrefixRecord prefixes = new PrefixRecord(1000);
        RoutingRequest kept = chat("", "kept".repeat(1000));
        for (int i = 0; i < 1000; i++) {
            prefixes.sent(instance, chat("", i + "x".repeat(2000)).prefix());
            prefixes.sent(instance, kept.prefix());
            assertThat(prefixes.size()).isLessThanOrEqualTo(1000);
        }
        assertThat(prefixes.known(instance, kept.prefix()))
                .isEqualTo(kept.prefix().chunks().length);
        assertThat(prefixes.known(instance, chat("", "0" + "x".repeat(2000)).prefix()))
                .isZero();
    }
}
