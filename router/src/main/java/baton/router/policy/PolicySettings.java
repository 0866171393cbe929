package baton.router.policy;

import baton.kv.ConfigException;
import baton.kv.GeneratedBuilder;
import baton.kv.Require;
import baton.router.cache.HeldBlocks;
import baton.router.flow.HandoffFlow;
import baton.router.upstream.Instances;
import java.time.Duration;
import java.util.Optional;

/**
 * How a router chooses instances.
 *
 * @param prefill one of {@link InstanceChooser#NAMES}, for prefill instances
 * @param decode likewise, for decode instances
 * @param slowStart for how long an instance that is new or has recovered gets less than its share; zero: not at all
 * @param recorded how many chunks of prompts are remembered for each role, by the policy {@code prefix}
 * @param kvEvents whether that policy follows the instances' blocks by events
 */
@GeneratedBuilder
public record PolicySettings(
        String prefill,
        String decode,
        int recorded,
        LocalPrefill localPrefill,
        Duration slowStart,
        KvEventSettings kvEvents)
        implements PolicySettingsBuilder.With {
    /** 256 MiB of prompts, in about 32 MiB of memory. */
    public static final int DEFAULT_RECORDED = 1 << 20;

    // Before the constant, which looks at them when it is made.
    private static final int MOST_RECORDED = 1 << 28;
    private static final Duration MOST_SLOW_START = Duration.ofHours(1);

    public static final PolicySettings DEFAULT =
            new PolicySettings(InTurn.NAME, InTurn.NAME, DEFAULT_RECORDED, LocalPrefill.NEVER);

    /** Without slow start. */
    public PolicySettings(String prefill, String decode, int recorded, LocalPrefill localPrefill) {
        this(prefill, decode, recorded, localPrefill, Duration.ZERO, KvEventSettings.OFF);
    }

    /** @throws ConfigException naming the setting that cannot be used */
    public PolicySettings {
        InstanceChooser.requireName("policy", prefill);
        InstanceChooser.requireName("decode policy", decode);
        Require.between("prefix chunks", recorded, 1, MOST_RECORDED);
        if (slowStart.isNegative() || slowStart.compareTo(MOST_SLOW_START) > 0) {
            throw ConfigException.unsupported("slow start", slowStart, "0 to 1 hour");
        }
        if (kvEvents.follow() && !prefill.equals(PrefixAware.NAME) && !decode.equals(PrefixAware.NAME)) {
            throw new ConfigException(
                    "kv events", "are for the policy " + PrefixAware.NAME + ", not " + prefill + " and " + decode);
        }
        if (localPrefill.uncachedBelowBytes() > 0 && !decode.equals(PrefixAware.NAME)) {
            throw new ConfigException(
                    "local prefill uncached threshold",
                    "needs the blocks of decode instances: it needs the decode policy " + PrefixAware.NAME + ", not "
                            + decode);
        }
    }

    /**
     * @param flow by which instances hand over
     * @param held blocks known by events
     */
    public RoutingPolicy policy(Instances instances, HandoffFlow flow, HeldBlocks held) {
        return new ConditionalDisaggregation(
                instances,
                flow,
                InstanceChooser.named("policy", prefill, recorded, held),
                InstanceChooser.named("decode policy", decode, recorded, held),
                localPrefill,
                localPrefill.goals().areSet() ? Optional.of(new GoalModel(localPrefill.goals())) : Optional.empty());
    }
}
