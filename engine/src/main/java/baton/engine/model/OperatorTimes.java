package baton.engine.model;

import baton.engine.kernel.Activation;
import baton.engine.model.Batch.Chunk;
import baton.engine.model.Batch.Group;
import baton.engine.model.OperatorRate.Bound;
import java.lang.foreign.Arena;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/** Times the operators of a rank: products with weights and attention. Used by one thread. */
final class OperatorTimes {
    private static final int MANY_ROWS = 16;

    /** Least work of a thread in a call that is timed: shorter calls measure how threads are woken. */
    private static final double LEAST_FLOPS = 4e6;

    private static final double LEAST_BYTES = 1e6;

    private final int threads;
    private final List<Operator> operators = new ArrayList<>();

    OperatorTimes(int threads) {
        this.threads = threads;
    }

    /** The best rates so far, of the operators that have had enough work. */
    List<OperatorRate> rates() {
        return operators.stream()
                .flatMap(operator -> operator.best.entrySet().stream()
                        .map(best -> new OperatorRate(operator.name, best.getKey(), best.getValue())))
                .toList();
    }

    /** An operator of that name, of one layer like of another. */
    private Operator operator(String name) {
        return operators.stream()
                .filter(operator -> operator.name.equals(name))
                .findFirst()
                .orElseGet(() -> {
                    Operator operator = new Operator(name);
                    operators.add(operator);
                    return operator;
                });
    }

    /** @param matrix [out, in], of so many elements and bytes */
    Linear timed(String name, Linear matrix, long elements, long bytes) {
        return new TimedLinear(matrix, operator(name), elements, bytes);
    }

    /**
     * @param reach by layer, how many positions a token attends to
     * @param slotBytes of a token's keys and values in a layer
     */
    Attention timed(Attention attention, ModelConfig config, int[] reach, long slotBytes) {
        return new TimedAttention(attention, operator("attention"), config, reach, slotBytes);
    }

    private final class Operator {
        private final String name;
        private final Map<Bound, Double> best = new EnumMap<>(Bound.class);

        Operator(String name) {
            this.name = name;
        }

        void took(long nanos, Bound bound, double work) {
            double ofThread = work / threads;
            if (ofThread >= (bound == Bound.READING ? LEAST_BYTES : LEAST_FLOPS)) {
                best.merge(bound, ofThread / (nanos * 1e-9), Math::max);
            }
        }
    }

    /** A product with weights that times its calls. */
    record TimedLinear(Linear matrix, Operator operator, long elements, long bytes) implements Linear {
        @Override
        public Matrix apply(Matrix rows) {
            long start = System.nanoTime();
            Matrix product = matrix.apply(rows);
            took(System.nanoTime() - start, rows.rows());
            return product;
        }

        @Override
        public void applyTo(Matrix out, Matrix rows) {
            long start = System.nanoTime();
            matrix.applyTo(out, rows);
            took(System.nanoTime() - start, rows.rows());
        }

        /** Does the work without timing it, as the number of elements is not known. */
        @Override
        public Matrix applyLast(int columns, Matrix rows) {
            return matrix.applyLast(columns, rows);
        }

        /** Both have the rate of both together. */
        @Override
        public Matrix applyGated(Linear gate, Activation activation, Matrix rows) {
            TimedLinear timed = (TimedLinear) gate;
            long start = System.nanoTime();
            Matrix product = matrix.applyGated(timed.matrix, activation, rows);
            long half = (System.nanoTime() - start) / 2;
            took(half, rows.rows());
            timed.took(half, rows.rows());
            return product;
        }

        /** All have the rate of all together. */
        @Override
        public List<Matrix> applyAll(List<Product> products) {
            List<Product> untimed = new ArrayList<>();
            Set<Operator> operators = new HashSet<>();
            long rows = 0;
            double flops = 0;
            double read = 0;
            for (Product product : products) {
                Optional<Gate> gate = product.gate();
                untimed.add(new Product(
                        ((TimedLinear) product.matrix()).matrix,
                        gate.map(each -> new Gate(((TimedLinear) each.matrix()).matrix, each.activation())),
                        product.rows()));
                rows += product.rows().rows();
                for (Linear each :
                        gate.isPresent() ? List.of(product.matrix(), gate.get().matrix()) : List.of(product.matrix())) {
                    TimedLinear timed = (TimedLinear) each;
                    operators.add(timed.operator);
                    flops += 2.0 * product.rows().rows() * timed.elements;
                    read += timed.bytes;
                }
            }
            long start = System.nanoTime();
            List<Matrix> results = matrix.applyAll(untimed);
            long nanos = System.nanoTime() - start;
            boolean many = rows >= MANY_ROWS * (long) products.size();
            for (Operator each : operators) {
                each.took(nanos, many ? Bound.ARITHMETIC : Bound.READING, many ? flops : read);
            }
            return results;
        }

        @Override
        public void addTo(Matrix x, Matrix rows) {
            long start = System.nanoTime();
            matrix.addTo(x, rows);
            took(System.nanoTime() - start, rows.rows());
        }

        private void took(long nanos, long count) {
            if (count >= MANY_ROWS) {
                operator.took(nanos, Bound.ARITHMETIC, 2.0 * count * elements);
            } else {
                operator.took(nanos, Bound.READING, bytes);
            }
        }
    }

    private record TimedAttention(
            Attention attention, Operator operator, ModelConfig config, int[] reach, long slotBytes)
            implements Attention {
        @Override
        public Pass begin(Batch batch, Optional<long[]> tailRows, Matrix queries, Matrix attended, Arena scratch) {
            Pass pass = attention.begin(batch, tailRows, queries, attended, scratch);
            return new Pass() {
                @Override
                public void attend(int layer) {
                    long start = System.nanoTime();
                    pass.attend(layer);
                    took(System.nanoTime() - start, batch, reach[layer]);
                }

                @Override
                public void attendTail(int layer) {
                    pass.attendTail(layer);
                }
            };
        }

        private void took(long nanos, Batch batch, int reach) {
            if (batch.chunks().isEmpty()) {
                double positions = batch.groups().stream()
                        .mapToLong(group -> positions(group, reach))
                        .sum();
                operator.took(nanos, Bound.READING, positions * slotBytes);
            } else if (batch.groups().isEmpty()) {
                double positions = batch.chunks().stream()
                        .mapToLong(chunk -> positions(chunk, reach))
                        .sum();
                operator.took(nanos, Bound.ARITHMETIC, 4.0 * positions * config.heads() * config.headDim());
            }
        }

        private static long positions(Group group, int reach) {
            return Arrays.stream(group.contexts())
                    .mapToLong(context -> Math.min(context, reach))
                    .sum();
        }

        private static long positions(Chunk chunk, int reach) {
            return upTo(chunk.context(), reach) - upTo(chunk.start(), reach);
        }

        /** The sum of {@code min(context, reach)} for contexts from 1 to {@code last}. */
        private static long upTo(long last, long reach) {
            long growing = Math.min(last, reach);
            return growing * (growing + 1) / 2 + (last - growing) * reach;
        }

        @Override
        public void close() {
            attention.close();
        }
    }
}
