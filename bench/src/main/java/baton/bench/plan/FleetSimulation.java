package baton.bench.plan;

import baton.kv.Percentiles;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Deque;
import java.util.Iterator;
import java.util.List;
import java.util.PriorityQueue;
import java.util.function.Consumer;

/**
 * Requests through a fleet, step by step of every instance, in simulated time. A step generates a token for each running sequence and
 * computes as much of the waiting prompts, first come first served, as the budget leaves room for. A request is sent to the instance with
 * the fewest tokens to do.
 */
final class FleetSimulation {
    /** Requests at the beginning do not count: the fleet is empty then. */
    private static final double WARM_UP = 0.1;

    /**
     * The results of a load.
     *
     * @param wellServed share of the requests
     * @param throughput requests per second that were completed
     * @param ttft seconds, of all requests, in order
     * @param itl likewise of all intervals
     */
    record Outcome(double wellServed, double throughput, double[] ttft, double[] itl) {
        /** @param share e.g. 0.99 */
        static double percentile(double[] sorted, double share) {
            return sorted.length == 0 ? 0 : Percentiles.of(sorted, share * 100);
        }
    }

    private record Event(double at, long number, Runnable action) {}

    private static final class Job {
        private final Workload.Shape shape;
        private final double arrived;
        private final boolean counts;
        private int computed;
        private int generated;
        private double firstToken = -1;
        private double lastToken;
        private int longer;
        private boolean bad;

        private Job(Workload.Arrival arrival, boolean counts) {
            this.shape = arrival.shape();
            this.arrived = arrival.at();
            this.counts = counts;
        }
    }

    private final PriorityQueue<Event> events =
            new PriorityQueue<>(Comparator.comparingDouble(Event::at).thenComparingLong(Event::number));
    private final Goals goals;
    private final boolean keepsIntervals;
    private final List<Job> done = new ArrayList<>();
    private double[] intervals = new double[1024];
    private int intervalCount;
    private int badlyServed;
    private double now;
    private long number;

    private FleetSimulation(Goals goals, boolean keepsIntervals) {
        this.goals = goals;
        this.keepsIntervals = keepsIntervals;
    }

    /**
     * Simulates.
     *
     * @param rate requests per second
     * @param count how many
     */
    static Outcome run(Fleet fleet, Workload load, double rate, int count, Goals goals, long seed) {
        FleetSimulation simulation = new FleetSimulation(goals, true);
        List<Workload.Arrival> arrivals = simulation.run(fleet, load, rate, count, seed, Integer.MAX_VALUE);
        return simulation.outcome(arrivals);
    }

    /** Whether enough requests are served well; ends as soon as it is known that they are not. */
    static boolean isGood(Fleet fleet, Workload load, double rate, int count, Goals goals, long seed) {
        FleetSimulation simulation = new FleetSimulation(goals, false);
        long counted = count - (long) Math.ceil(count * WARM_UP);
        int allowed = (int) Math.floor(counted * (1 - goals.attained()) + 1e-9);
        List<Workload.Arrival> unusedArrivals = simulation.run(fleet, load, rate, count, seed, allowed);
        return simulation.badlyServed <= allowed;
    }

    private List<Workload.Arrival> run(Fleet fleet, Workload load, double rate, int count, long seed, int allowed) {
        Consumer<Job> entry = build(fleet);
        List<Workload.Arrival> arrivals = load.arrivals(rate, count, seed);
        for (int i = 0; i < arrivals.size(); i++) {
            Workload.Arrival arrival = arrivals.get(i);
            Job job = new Job(arrival, i >= count * WARM_UP);
            at(arrival.at(), () -> entry.accept(job));
        }
        while (!events.isEmpty() && badlyServed <= allowed) {
            Event event = events.remove();
            now = event.at;
            event.action.run();
        }
        return arrivals;
    }

    private Consumer<Job> build(Fleet fleet) {
        return switch (fleet) {
            case Fleet.Colocated(MachineProfile machine, int instances, int budget) -> {
                List<Instance> all = new ArrayList<>();
                for (int i = 0; i < instances; i++) {
                    all.add(new Instance(machine, budget, Instance::generate));
                }
                yield job -> leastBusy(all).compute(job);
            }
            case Fleet.Disaggregated(
                    MachineProfile prefill,
                    int prefills,
                    MachineProfile decode,
                    int decodes,
                    String connector) -> {
                Curve handoff = prefill.handoff().getOrDefault(connector, Curve.constant(0));
                List<Instance> decoders = new ArrayList<>();
                for (int i = 0; i < decodes; i++) {
                    decoders.add(new Instance(decode, Integer.MAX_VALUE, Instance::generate));
                }
                List<Instance> prefillers = new ArrayList<>();
                for (int i = 0; i < prefills; i++) {
                    prefillers.add(new Instance(
                            prefill,
                            Integer.MAX_VALUE,
                            (_, job) -> at(
                                    now + handoff.at(job.shape.prompt()),
                                    () -> leastBusy(decoders).generateLater(job))));
                }
                yield job -> leastBusy(prefillers).compute(job);
            }
        };
    }

    private static Instance leastBusy(List<Instance> instances) {
        return instances.stream()
                .min(Comparator.comparingLong(Instance::tokensToDo))
                .orElseThrow();
    }

    private void at(double time, Runnable action) {
        events.add(new Event(time, number++, action));
    }

    private void token(Job job) {
        if (job.firstToken < 0) {
            job.firstToken = now;
            judge(job);
        } else {
            double interval = now - job.lastToken;
            if (interval > goals.itl()) {
                job.longer++;
                judge(job);
            }
            if (keepsIntervals && job.counts) {
                if (intervalCount == intervals.length) {
                    intervals = Arrays.copyOf(intervals, 2 * intervalCount);
                }
                intervals[intervalCount++] = interval;
            }
        }
        job.lastToken = now;
        job.generated++;
    }

    /** A goal that was missed once stays missed. */
    private void judge(Job job) {
        if (job.counts && !job.bad && !isWell(job)) {
            job.bad = true;
            badlyServed++;
        }
    }

    private boolean isWell(Job job) {
        return goals.met(job.firstToken - job.arrived, job.shape.output() - 1, job.longer);
    }

    private Outcome outcome(List<Workload.Arrival> arrivals) {
        List<Job> counted = done.stream().filter(job -> job.counts).toList();
        long well = counted.stream().filter(this::isWell).count();
        double[] ttft = counted.stream()
                .mapToDouble(job -> job.firstToken - job.arrived)
                .sorted()
                .toArray();
        double[] itl = Arrays.copyOf(intervals, intervalCount);
        Arrays.sort(itl);
        double end = done.stream().mapToDouble(job -> job.lastToken).max().orElse(0);
        return new Outcome(
                counted.isEmpty() ? 0 : (double) well / counted.size(),
                arrivals.size() / Math.max(end, 1e-9),
                ttft,
                itl);
    }

    /** The handling of a prompt that an instance has computed. */
    private interface Computed {
        void accept(Instance instance, Job job);
    }

    private final class Instance {
        private final MachineProfile machine;
        private final int budget;
        private final Computed computed;
        private final Deque<Job> prompts = new ArrayDeque<>();
        private final Deque<Job> joining = new ArrayDeque<>();
        private final List<Job> running = new ArrayList<>();
        private long context;
        private long tokensToDo;
        private boolean stepping;

        private Instance(MachineProfile machine, int budget, Computed computed) {
            this.machine = machine;
            this.budget = budget;
            this.computed = computed;
        }

        private long tokensToDo() {
            return tokensToDo;
        }

        private void compute(Job job) {
            prompts.add(job);
            tokensToDo += job.shape.prompt();
            step();
        }

        /** A prompt that was computed here in this step: its first token comes with it. */
        private void generate(Job job) {
            tokensToDo += job.shape.output();
            join(job);
            token(job);
            tokensToDo--;
            context++;
            endIfComplete(job);
        }

        /** A prompt that was computed elsewhere. */
        private void generateLater(Job job) {
            tokensToDo += job.shape.output();
            joining.add(job);
            step();
        }

        private void join(Job job) {
            running.add(job);
            context += job.shape.prompt() + job.generated;
        }

        private void endIfComplete(Job job) {
            if (job.generated == job.shape.output()) {
                running.remove(job);
                context -= job.shape.prompt() + job.generated;
                done.add(job);
            }
        }

        private void step() {
            if (stepping) {
                return;
            }
            while (!joining.isEmpty() && running.size() < machine.maxSequences()) {
                join(joining.remove());
            }
            int sequences = running.size();
            double prompt = 0;
            int taken = 0;
            int left = Math.max(0, budget - sequences);
            List<Job> complete = new ArrayList<>();
            Iterator<Job> waiting = prompts.iterator();
            while (left > 0 && waiting.hasNext() && sequences + complete.size() < machine.maxSequences()) {
                Job job = waiting.next();
                int chunk = Math.min(left, job.shape.prompt() - job.computed);
                prompt += machine.promptSeconds(job.computed, job.computed + chunk);
                job.computed += chunk;
                tokensToDo -= chunk;
                left -= chunk;
                taken += chunk;
                if (job.computed == job.shape.prompt()) {
                    waiting.remove();
                    complete.add(job);
                }
                if (budget == Integer.MAX_VALUE) {
                    // Without a budget one prompt after the other: together they would all wait for the last.
                    break;
                }
            }
            if (sequences == 0 && taken == 0) {
                return;
            }
            double seconds = sequences == 0
                    ? machine.prefill().at(0) + prompt
                    : machine.stepSeconds(sequences, context) + machine.mixed() * prompt;
            stepping = true;
            at(now + seconds, () -> ended(complete));
        }

        private void ended(List<Job> complete) {
            stepping = false;
            // From the end, as those that are complete leave.
            for (int i = running.size() - 1; i >= 0; i--) {
                Job job = running.get(i);
                token(job);
                tokensToDo--;
                context++;
                endIfComplete(job);
            }
            complete.forEach(job -> computed.accept(this, job));
            step();
        }
    }
}
