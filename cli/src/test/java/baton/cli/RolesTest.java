package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Instances.Instance;
import baton.cli.Instances.Prompts;
import baton.cli.Instances.Reply;
import baton.testkit.Await;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import tools.jackson.databind.JsonNode;

/** Instances that change their role under load, and one that leaves its prefix cache to the others. */
@Tag("thorough")
class RolesTest {
    private static final String KEY = "an-admin-key";
    private static final int TOKENS = 8;
    private static final int PROMPT = 320;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    private static List<Instance> fleet(String name, int size) throws Exception {
        List<Instance> fleet = new ArrayList<>();
        for (int i = 0; i < size; i++) {
            fleet.add(INSTANCES.serveBlocks(name + i, "NixlConnector", "kv_both", "--served-model-name", "m"));
        }
        return fleet;
    }

    private static Instance router(String name, String policy, List<Instance> prefills, List<Instance> decodes)
            throws Exception {
        return INSTANCES.route(
                name, prefills, decodes, "--flow", "kv_transfer_params", "--policy", policy, "--admin-key", KEY);
    }

    /** Prompts that have no beginning in common. */
    private static List<int[]> prompts(int count, long seed) {
        Random random = new Random(seed);
        List<int[]> prompts = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            prompts.add(random.ints(PROMPT, 5, 250).toArray());
        }
        return prompts;
    }

    private static Reply admin(Instance router, String action, String role, Instance instance, String more)
            throws Exception {
        return router.post(
                "/v1/instances/" + action,
                "{\"role\": \"%s\", \"url\": \"%s\"%s}".formatted(role, instance.url(), more),
                "Authorization",
                "Bearer " + KEY);
    }

    private static JsonNode known(Instance router, Instance instance) throws Exception {
        String url = instance.url().toString();
        return router.get("/v1/instances")
                .json()
                .get("instances")
                .valueStream()
                .filter(each -> each.get("url").asString().equals(url))
                .findFirst()
                .orElseThrow();
    }

    /** The share of the prompts' tokens that prefill instances had in their prefix caches. */
    private static double hitRate(Instance router, List<Instance> prefills, List<int[]> prompts) throws Exception {
        List<Prompts> before = new ArrayList<>();
        for (Instance prefill : prefills) {
            before.add(prefill.prompts());
        }
        for (int[] prompt : prompts) {
            assertThat(router.complete(prompt, 2).status()).isEqualTo(200);
        }
        int cached = 0;
        int all = 0;
        for (int i = 0; i < prefills.size(); i++) {
            Prompts since = prefills.get(i).prompts().since(before.get(i));
            cached += since.cached();
            all += since.cached() + since.computed() + since.transferred();
        }
        return (double) cached / all;
    }

    @Test
    void theCacheOfAnInstanceThatLeavesStays() throws Exception {
        List<Instance> prefills = fleet("leaving-prefill", 3);
        Instance router = router("leaving-router", "prefix", prefills, fleet("leaving-decode", 1));
        List<int[]> lost = prompts(15, 1);
        List<int[]> kept = prompts(15, 2);
        hitRate(router, prefills, lost);
        hitRate(router, prefills, kept);
        double before = hitRate(router, prefills, kept);
        Instance leaving = prefills.getFirst();
        List<Instance> staying = prefills.subList(1, 3);
        assertThat(admin(router, "drain", "prefill", leaving, "").body()).contains("\"changed\":true");
        double without = hitRate(router, staying, lost);
        assertThat(admin(router, "drain", "prefill", leaving, ", \"keep_cache\": true")
                        .body())
                .contains("\"takers\":2");
        Await.until(
                Instances.DEADLINE,
                () -> "the cache is not handed over",
                () -> known(router, leaving).at("/kept_cache/done").asBoolean(false));
        JsonNode handover = known(router, leaving).get("kept_cache");
        double with = hitRate(router, staying, kept);
        System.out.printf(
                "hit rate of 15 prompts: %.3f of three instances, %.3f of two, %.3f of two that took over %s%n",
                before, without, with, handover);
        assertThat(handover.get("failed").asInt()).isZero();
        assertThat(handover.get("loaded").asInt()).isPositive();
        assertThat(with).isGreaterThan(before - 0.05);
        assertThat(without).isLessThan(before - 0.2);
    }

    @Test
    void rolesChangeUnderLoadWithoutAWrongAnswer() throws Exception {
        List<Instance> all = fleet("switching", 4);
        Instance router = router("switching-router", "round_robin", all.subList(0, 2), all.subList(2, 4));
        List<int[]> prompts = prompts(12, 3);
        List<int[]> expected = new ArrayList<>();
        for (int[] prompt : prompts) {
            expected.add(all.getFirst().complete(prompt, TOKENS).tokenIds());
        }
        AtomicBoolean over = new AtomicBoolean();
        List<CompletableFuture<Integer>> clients = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            int first = i;
            clients.add(CompletableFuture.supplyAsync(() -> {
                int asked = 0;
                try {
                    for (; !over.get(); asked++) {
                        int at = (first + asked) % prompts.size();
                        assertThat(router.complete(prompts.get(at), TOKENS).tokenIds())
                                .isEqualTo(expected.get(at));
                    }
                } catch (Exception e) {
                    throw new AssertionError(e);
                }
                return asked;
            }));
        }
        // 2P2D, 1P3D, 3P1D, 2P2D.
        change(router, all.get(1), "decode", clients);
        change(router, all.get(1), "prefill", clients);
        change(router, all.get(2), "prefill", clients);
        change(router, all.get(2), "decode", clients);
        over.set(true);
        int asked = 0;
        for (CompletableFuture<Integer> client : clients) {
            asked += client.get();
        }
        System.out.printf("%d requests while roles changed four times%n", asked);
        assertThat(router.metric("baton:router_role_changes_total", "proven")).isEqualTo(4);
        assertThat(router.metric("baton:router_retries_total", "")).isZero();
    }

    private static void change(
            Instance router, Instance instance, String role, List<CompletableFuture<Integer>> clients)
            throws Exception {
        assertThat(admin(router, "role", role, instance, "").body()).contains("\"changed\":true");
        Await.until(Instances.DEADLINE, () -> instance + " does no work as " + role, () -> {
            for (CompletableFuture<Integer> client : clients) {
                // Throws if the client has failed.
                client.getNow(0);
            }
            JsonNode known = known(router, instance);
            return known.get("role").asString().equals(role)
                    && known.at("/role_change/state").asString("").equals("proven");
        });
        JsonNode told = instance.get("/v1/pd_role").json();
        assertThat(told.get("role").asString()).isEqualTo(role);
        assertThat(told.at("/" + role + "/requests").asInt()).isPositive();
    }
}
