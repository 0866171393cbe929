package baton.bench.plan;

import java.util.Locale;

/** Instances, and how requests go through them. */
public sealed interface Fleet {
    /** Units that the instances occupy together. */
    int units();

    /** The fleet's text in reports. */
    String describe();

    /**
     * Instances that each compute prompts and generate tokens.
     *
     * @param budget tokens of a step at most, prompts' and generated ones: vLLM's {@code max_num_batched_tokens}
     */
    record Colocated(MachineProfile machine, int instances, int budget) implements Fleet {
        @Override
        public int units() {
            return instances * machine.units();
        }

        @Override
        public String describe() {
            return String.format(Locale.ROOT, "%d colocated, budget %d", instances, budget);
        }
    }

    /**
     * Instances that compute prompts, and others that generate tokens.
     *
     * @param connector one of the prefill machine's profile
     */
    record Disaggregated(MachineProfile prefill, int prefills, MachineProfile decode, int decodes, String connector)
            implements Fleet {
        @Override
        public int units() {
            return prefills * prefill.units() + decodes * decode.units();
        }

        @Override
        public String describe() {
            return String.format(Locale.ROOT, "%dP%dD, %s", prefills, decodes, connector);
        }
    }
}
