package baton.cuda.sim;

import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.IntBinaryOperator;

/** Makes executable instructions of the text of a kernel. */
final class Decoder {
    static final int ALWAYS = Operands.ALWAYS;

    private static final Set<String> MOVED = Set.of("b32", "u32", "f32", "b64", "u64");

    private final KernelText kernel;
    private final Operands operands;
    private final MemoryInstructions memory;
    private final WarpInstructions warps;

    private Decoder(KernelText kernel) {
        this.kernel = kernel;
        this.operands = new Operands(kernel);
        this.memory = new MemoryInstructions(operands);
        this.warps = new WarpInstructions(operands);
    }

    static KernelCode decode(KernelText kernel) {
        return new Decoder(kernel).code();
    }

    private KernelCode code() {
        List<Statement> statements = kernel.statements();
        KernelCode.Step[] steps = new KernelCode.Step[statements.size() + 1];
        for (int i = 0; i < statements.size(); i++) {
            Statement statement = statements.get(i);
            steps[i] = new KernelCode.Step(
                    statement,
                    statement.guard().isEmpty() ? ALWAYS : operands.predicate(statement, statement.guard()),
                    statement.negated() ? -1 : 0,
                    operation(statement));
        }
        Statement end = new Statement(0, "}", "", false, "ret", List.of());
        steps[statements.size()] = new KernelCode.Step(end, ALWAYS, 0, Warp::end);
        return new KernelCode(
                kernel,
                steps,
                operands.words(),
                operands.constants(),
                operands.longs(),
                operands.wideConstants(),
                operands.predicates(),
                memory.sharedShift(),
                memory.globalShift(),
                new ConcurrentLinkedQueue<>());
    }

    private Operation operation(Statement statement) {
        LaneInstruction instruction = LaneInstruction.ALL.get(statement.opcode());
        if (instruction != null) {
            return ofLanes(statement, instruction);
        }
        String[] parts = statement.opcode().split("\\.", -1);
        String type = parts[parts.length - 1];
        return switch (parts[0]) {
            case "mov" -> move(statement, type);
            case "selp" -> selected(statement, type);
            case "and", "or", "not" -> ofPredicates(statement, parts[0], type);
            case "bra" -> branch(statement);
            case "ret" -> end(statement);
            case "ld", "st", "cp" -> memory.operation(statement, parts);
            case "bar", "shfl", "ldmatrix", "mma" -> warps.operation(statement, parts);
            default -> throw unknown(statement);
        };
    }

    static RuntimeException unknown(Statement statement) {
        return statement.refused("the instruction is not of the subset of PTX that the simulated device executes");
    }

    static void count(Statement statement, int expected) {
        if (statement.operands().size() != expected) {
            throw statement.refused(
                    "%d operands, not %d".formatted(statement.operands().size(), expected));
        }
    }

    private Operation ofLanes(Statement statement, LaneInstruction instruction) {
        List<String> types = instruction.operands();
        count(statement, types.size() + 1);
        String result = statement.operands().getFirst();
        int d;
        if (instruction.result().equals(LaneInstruction.PREDICATE)) {
            d = operands.predicate(statement, result);
        } else {
            d = operands.result(statement, result, instruction.result()).first();
        }
        int[] rows = new int[3];
        for (int i = 0; i < types.size(); i++) {
            rows[i] = operands.source(statement, statement.operands().get(i + 1), types.get(i))
                    .first();
        }
        LaneLoop loop = instruction.loop();
        int a = rows[0];
        int b = rows[1];
        int c = rows[2];
        return (warp, lanes) -> loop.run(warp, d, a, b, c, lanes);
    }

    private Operation move(Statement statement, String type) {
        count(statement, 2);
        String to = statement.operands().getFirst();
        String from = statement.operands().getLast();
        if (!MOVED.contains(type) || !statement.opcode().equals("mov." + type)) {
            throw unknown(statement);
        }
        if (to.startsWith("{") || from.startsWith("{")) {
            return packed(statement, type, to, from);
        }
        return copied(operands.result(statement, to, type), operands.source(statement, from, type));
    }

    private static Operation copied(Operands.Row to, Operands.Row from) {
        return (warp, lanes) -> {
            Object rows = to.wide() ? warp.longs : warp.words;
            if (lanes == Warp.ALL) {
                System.arraycopy(rows, from.first(), rows, to.first(), Warp.LANES);
                return;
            }
            for (int left = lanes; left != 0; left &= left - 1) {
                int lane = Integer.numberOfTrailingZeros(left);
                if (to.wide()) {
                    warp.longs[to.first() + lane] = warp.longs[from.first() + lane];
                } else {
                    warp.words[to.first() + lane] = warp.words[from.first() + lane];
                }
            }
        };
    }

    /** {@code mov.b32 %r, {%h, %h}} and the like. */
    private Operation packed(Statement statement, String type, String to, String from) {
        boolean pack = from.startsWith("{");
        List<String> parts = Operands.elements(pack ? from : to);
        int bits = LaneInstruction.bits(type) / parts.size();
        if (!type.startsWith("b") || parts.size() < 2 || bits < Short.SIZE) {
            throw unknown(statement);
        }
        Operands.Row whole = pack ? operands.result(statement, to, type) : operands.source(statement, from, type);
        Operands.Row[] rows = new Operands.Row[parts.size()];
        Arrays.setAll(
                rows,
                i -> pack
                        ? operands.source(statement, parts.get(i), "b" + bits)
                        : operands.result(statement, parts.get(i), "b" + bits));
        long mask = -1L >>> Long.SIZE - bits;
        return (warp, lanes) -> {
            for (int left = lanes; left != 0; left &= left - 1) {
                int lane = Integer.numberOfTrailingZeros(left);
                long value = pack ? 0 : get(warp, whole, lane);
                for (int i = 0; i < rows.length; i++) {
                    if (pack) {
                        value |= (get(warp, rows[i], lane) & mask) << i * bits;
                    } else {
                        set(warp, rows[i], lane, value >>> i * bits & mask);
                    }
                }
                if (pack) {
                    set(warp, whole, lane, value);
                }
            }
        };
    }

    private static long get(Warp warp, Operands.Row row, int lane) {
        return row.wide() ? warp.longs[row.first() + lane] : warp.words[row.first() + lane];
    }

    private static void set(Warp warp, Operands.Row row, int lane, long value) {
        if (row.wide()) {
            warp.longs[row.first() + lane] = value;
        } else {
            warp.words[row.first() + lane] = (int) value;
        }
    }

    private Operation selected(Statement statement, String type) {
        count(statement, 4);
        if (!MOVED.contains(type) || !statement.opcode().equals("selp." + type)) {
            throw unknown(statement);
        }
        List<String> names = statement.operands();
        Operands.Row to = operands.result(statement, names.get(0), type);
        Operands.Row a = operands.source(statement, names.get(1), type);
        Operands.Row b = operands.source(statement, names.get(2), type);
        int predicate = operands.predicate(statement, names.get(3));
        return (warp, lanes) -> {
            int chosen = warp.predicates[predicate];
            for (int left = lanes; left != 0; left &= left - 1) {
                int lane = Integer.numberOfTrailingZeros(left);
                int from = ((chosen >>> lane & 1) != 0 ? a : b).first() + lane;
                if (to.wide()) {
                    warp.longs[to.first() + lane] = warp.longs[from];
                } else {
                    warp.words[to.first() + lane] = warp.words[from];
                }
            }
        };
    }

    private Operation ofPredicates(Statement statement, String name, String type) {
        if (!type.equals(LaneInstruction.PREDICATE) || !statement.opcode().equals(name + "." + type)) {
            throw unknown(statement);
        }
        boolean unary = name.equals("not");
        count(statement, unary ? 2 : 3);
        int to = operands.predicate(statement, statement.operands().getFirst());
        int a = operands.predicate(statement, statement.operands().get(1));
        int b = unary
                ? ALWAYS
                : operands.predicate(statement, statement.operands().get(2));
        IntBinaryOperator function = switch (name) {
            case "and" -> (x, y) -> x & y;
            case "or" -> (x, y) -> x | y;
            default -> (x, _) -> ~x;
        };
        return (warp, lanes) -> {
            int[] all = warp.predicates;
            all[to] = all[to] & ~lanes | function.applyAsInt(all[a], all[b]) & lanes;
        };
    }

    private Operation branch(Statement statement) {
        count(statement, 1);
        int to = operands.label(statement, statement.operands().getFirst());
        if (!statement.opcode().equals("bra")) {
            throw unknown(statement);
        }
        return (warp, lanes) -> warp.branch(to, lanes);
    }

    private static Operation end(Statement statement) {
        count(statement, 0);
        if (!statement.opcode().equals("ret")) {
            throw unknown(statement);
        }
        return Warp::end;
    }
}
