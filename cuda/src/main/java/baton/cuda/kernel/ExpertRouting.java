package baton.cuda.kernel;

import static baton.cuda.ptx.PtxAssembler.f32;
import static baton.cuda.ptx.PtxAssembler.u32;

import baton.cuda.driver.Gpu;
import baton.cuda.driver.Gpu.Stream;
import baton.cuda.ptx.Is;
import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.Operand.Pred;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import baton.engine.model.Recipe.Experts;
import baton.engine.model.Recipe.Routing;
import baton.kv.DType;
import java.util.Arrays;
import java.util.List;

/** Chooses the experts of rows, as the CPU's layers of experts do: a warp for each row, of which a lane has every 32nd expert. */
final class ExpertRouting implements AutoCloseable {
    private static final int THREADS = 128;
    private static final int WARP = PtxAssembler.WARP;

    /** The addend to the sum of shares that shares are divided by, as on the CPU. */
    private static final float LEAST_SUM = 1e-20f;

    private static final F32 LOWEST = f32(Double.NEGATIVE_INFINITY);

    private final Variants<Kind> kernels;

    /**
     * The shape that a kernel is generated for.
     *
     * @param columns of logits: one for each expert, and perhaps one for the shared expert
     */
    record Kind(Experts experts, boolean corrected, boolean shared, int columns) {}

    ExpertRouting(Gpu gpu) {
        this.kernels = new Variants<>(gpu, ExpertRouting::kernels);
    }

    static List<PtxKernel> kernels(Kind kind) {
        return List.of(new Code(kind).kernel());
    }

    /** See {@link ExpertOps#route}. */
    void route(
            Stream stream,
            DeviceRows logits,
            long correction,
            Experts kind,
            long chosen,
            long shares,
            long sharedShares) {
        if (kind.chosen() > WARP || kind.routing().groups() > WARP || logits.type() != DType.F32) {
            throw new IllegalArgumentException("logits=%s of kind=%s must be F32, of up to %d chosen experts and groups"
                    .formatted(logits, kind, WARP));
        }
        kernels.of(new Kind(kind, correction != 0, sharedShares != 0, logits.columns()))
                .launch(
                        stream,
                        Code.NAME,
                        Math.ceilDiv(logits.rows() * WARP, THREADS),
                        logits.address(),
                        logits.rowStride() * Float.BYTES,
                        logits.rows(),
                        correction,
                        chosen,
                        shares,
                        sharedShares);
    }

    @Override
    public void close() {
        kernels.close();
    }

    /** A number and its index, in all lanes of a warp. */
    private record Largest(F32 number, U32 index) {}

    private static final class Code {
        static final String NAME = "route";

        private final PtxAssembler k = new PtxAssembler(NAME, THREADS);
        private final Kind kind;
        private final Experts experts;
        private final Routing routing;
        private final U32 lane = k.lane();

        /** Whether each of the lane's experts exists. */
        private final Pred[] isExpert;

        private final U32[] indices;

        Code(Kind kind) {
            this.kind = kind;
            this.experts = kind.experts;
            this.routing = experts.routing();
            int ofLane = Math.ceilDiv(experts.count(), WARP);
            this.isExpert = new Pred[ofLane];
            this.indices = new U32[ofLane];
            for (int i = 0; i < ofLane; i++) {
                indices[i] = k.add(lane, i * WARP);
                isExpert[i] = k.test(indices[i], Is.LT, experts.count());
            }
        }

        PtxKernel kernel() {
            U64 logits = k.parameterU64("logits");
            U64 rowStride = k.parameterU64("rowStride");
            U32 rows = k.parameterU32("rows");
            U64 correction = k.parameterU64("correction");
            U64 chosen = k.parameterU64("chosen");
            U64 shares = k.parameterU64("shares");
            U64 sharedShares = k.parameterU64("sharedShares");
            U32 row = k.mad(k.blockX(), THREADS / WARP, k.warp());
            // All lanes of a warp have the same row.
            k.exitIf(k.test(row, Is.GE, rows));
            U64 own = k.at(logits, row, rowStride);
            F32[] numbers = loadExperts(own, LOWEST);
            F32[] ofExperts = numbers.clone();
            F32 total = routing.independent() ? sigmoids(ofExperts) : exponentials(ofExperts);
            F32[] preferences = preferences(routing.independent() ? ofExperts : numbers, correction);
            if (routing.chosenGroups() < routing.groups()) {
                excludeGroups(preferences);
            }
            store(preferences, ofExperts, total, row, chosen, shares);
            if (kind.shared) {
                F32 share = kind.columns > experts.count()
                        ? k.sigmoid(k.load(DType.F32, own, experts.count() * Float.BYTES))
                        : f32(1);
                k.when(
                        k.test(lane, Is.EQ, 0),
                        () -> k.store(DType.F32, k.at(sharedShares, row, Float.BYTES), 0, share));
            }
            return k.kernel();
        }

        /** Variables with a number of each of the lane's experts. */
        private F32[] loadExperts(U64 address, F32 otherwise) {
            F32[] numbers = k.variables(isExpert.length, otherwise);
            for (int i = 0; i < numbers.length; i++) {
                int next = i;
                k.when(
                        isExpert[i],
                        () -> k.set(numbers[next], k.load(DType.F32, k.at(address, indices[next], Float.BYTES), 0)));
            }
            return numbers;
        }

        /** Replaces logits by exponentials, as {@code ExpertLayers} does, and returns their sum. If one is not a number, none is. */
        private F32 exponentials(F32[] numbers) {
            F32 largest = k.acrossLanes(Arrays.stream(numbers).reduce(k::max).orElseThrow(), WARP, k::max);
            F32 sum = f32(0);
            for (int i = 0; i < numbers.length; i++) {
                numbers[i] = k.exp(k.sub(numbers[i], largest));
                sum = k.add(sum, k.select(isExpert[i], numbers[i], f32(0)));
            }
            F32 total = k.acrossLanes(sum, WARP, k::add);
            spread(numbers, total);
            return total;
        }

        /** Replaces logits by sigmoids, and returns 1. If one is not a number, none is. */
        private F32 sigmoids(F32[] numbers) {
            F32 sum = f32(0);
            for (int i = 0; i < numbers.length; i++) {
                numbers[i] = k.sigmoid(numbers[i]);
                sum = k.add(sum, k.select(isExpert[i], numbers[i], f32(0)));
            }
            spread(numbers, k.acrossLanes(sum, WARP, k::add));
            return f32(1);
        }

        private void spread(F32[] numbers, F32 total) {
            Pred isNaN = k.isNaN(total);
            for (int i = 0; i < numbers.length; i++) {
                numbers[i] = k.select(isNaN, total, numbers[i]);
            }
        }

        private F32[] preferences(F32[] numbers, U64 correction) {
            F32[] corrections = kind.corrected ? loadExperts(correction, f32(0)) : new F32[0];
            F32[] preferences = new F32[numbers.length];
            for (int i = 0; i < numbers.length; i++) {
                F32 preference = kind.corrected ? k.add(numbers[i], corrections[i]) : numbers[i];
                preferences[i] = k.variable(k.select(isExpert[i], preference, LOWEST));
            }
            return preferences;
        }

        /** No expert of a group that is not chosen is preferred to any other expert. */
        private void excludeGroups(F32[] preferences) {
            int size = experts.count() / routing.groups();
            F32[] left = new F32[preferences.length];
            Arrays.setAll(left, i -> k.variable(preferences[i]));
            // Lane g has the sum of group g.
            F32 sums = k.variable(LOWEST);
            k.loop(u32(0), u32(routing.groups()), u32(1), group -> {
                F32 sum = f32(0);
                for (int i = 0; i < routing.summed(); i++) {
                    F32[] ofGroup = new F32[left.length];
                    Arrays.setAll(
                            ofGroup, j -> k.select(k.test(k.div(indices[j], size), Is.EQ, group), left[j], LOWEST));
                    Largest largest = largest(ofGroup, indices);
                    take(largest, left);
                    sum = k.add(sum, largest.number);
                }
                k.set(sums, k.select(k.test(lane, Is.EQ, group), sum, sums));
            });
            Pred[] isChosen = new Pred[preferences.length];
            for (int round = 0; round < routing.chosenGroups(); round++) {
                Largest largest = largest(new F32[] {sums}, new U32[] {lane});
                k.set(sums, k.select(k.test(lane, Is.EQ, largest.index), LOWEST, sums));
                for (int i = 0; i < isChosen.length; i++) {
                    Pred isOfGroup = k.test(k.div(indices[i], size), Is.EQ, largest.index);
                    isChosen[i] = round == 0 ? isOfGroup : k.or(isChosen[i], isOfGroup);
                }
            }
            for (int i = 0; i < isChosen.length; i++) {
                k.set(preferences[i], k.select(isChosen[i], preferences[i], LOWEST));
            }
        }

        /** The largest number, the first one of several; the first one at all if none is above negative infinity. */
        private Largest largest(F32[] numbers, U32[] of) {
            F32 number = LOWEST;
            U32 index = of[0];
            for (int i = 0; i < numbers.length; i++) {
                Pred larger = k.test(numbers[i], Is.GT, number);
                number = k.select(larger, numbers[i], number);
                index = k.select(larger, of[i], index);
            }
            for (int distance = WARP / 2; distance > 0; distance /= 2) {
                F32 other = k.shuffleXor(number, distance);
                U32 ofOther = k.shuffleXor(index, distance);
                Pred firstOfEqual = k.and(k.test(other, Is.EQ, number), k.test(ofOther, Is.LT, index));
                Pred takes = k.or(k.test(other, Is.GT, number), firstOfEqual);
                number = k.select(takes, other, number);
                index = k.select(takes, ofOther, index);
            }
            return new Largest(number, index);
        }

        private void take(Largest largest, F32[] left) {
            for (int i = 0; i < left.length; i++) {
                k.set(left[i], k.select(k.test(indices[i], Is.EQ, largest.index), LOWEST, left[i]));
            }
        }

        /** Chooses experts and stores them in the order of their numbers. */
        private void store(F32[] preferences, F32[] ofExperts, F32 total, U32 row, U64 chosen, U64 shares) {
            int count = experts.chosen();
            U32[] taken = new U32[count];
            F32[] takenShares = new F32[count];
            F32 ofChosen = f32(0);
            for (int i = 0; i < count; i++) {
                Largest largest = largest(preferences, indices);
                take(largest, preferences);
                taken[i] = largest.index;
                takenShares[i] = share(ofExperts, largest.index);
                ofChosen = k.add(ofChosen, takenShares[i]);
            }
            F32 divisor = experts.normalised() ? k.add(ofChosen, f32(LEAST_SUM)) : total;
            // Lane i has the expert that was chosen as the i-th.
            U32 expert = u32(0);
            F32 share = f32(0);
            for (int i = 0; i < count; i++) {
                Pred own = k.test(lane, Is.EQ, i);
                expert = k.select(own, taken[i], expert);
                share = k.select(own, takenShares[i], share);
            }
            U32 rank = u32(0);
            for (int i = 0; i < count; i++) {
                Pred earlier = k.and(k.test(taken[i], Is.EQ, expert), k.test(lane, Is.GT, i));
                rank = k.add(rank, k.select(k.or(k.test(taken[i], Is.LT, expert), earlier), u32(1), u32(0)));
            }
            U32 place = k.mad(row, count, rank);
            U32 ofPlace = expert;
            F32 result = k.mul(k.div(share, divisor), f32(routing.factor()));
            k.when(k.test(lane, Is.LT, count), () -> {
                k.storeU32(k.at(chosen, place, Integer.BYTES), 0, ofPlace);
                k.store(DType.F32, k.at(shares, place, Float.BYTES), 0, result);
            });
        }

        /** The share of an expert that is the same for all lanes. */
        private F32 share(F32[] ofExperts, U32 expert) {
            F32 own = ofExperts[0];
            for (int i = 1; i < ofExperts.length; i++) {
                own = k.select(k.test(k.shr(expert, 5), Is.EQ, i), ofExperts[i], own);
            }
            return k.shuffle(own, k.and(expert, WARP - 1));
        }
    }
}
