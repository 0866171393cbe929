package baton.cuda.sim;

import java.util.ArrayList;
import java.util.List;

/** Instructions that lanes of a warp execute together. */
record WarpInstructions(Operands operands) {
    private static final int LANE_MASK = Warp.LANES - 1;
    private static final int MATRICES = 4;
    private static final int ROWS = 8;
    private static final int ROW_BYTES = 16;

    /** The source lane of a shuffle, by mode. */
    private enum Shuffle {
        UP,
        BUTTERFLY,
        INDEX
    }

    Operation operation(Statement statement, String[] parts) {
        return switch (parts[0]) {
            case "bar" -> barrier(statement);
            case "shfl" -> shuffle(statement, parts);
            case "ldmatrix" -> loadMatrices(statement);
            default -> TensorProduct.operation(statement, operands);
        };
    }

    private Operation barrier(Statement statement) {
        Decoder.count(statement, 1);
        String operand = statement.operands().getFirst();
        return switch (statement.opcode()) {
            case "bar.sync" -> {
                if (Operands.immediate(statement, operand) != 0) {
                    throw statement.refused("the only barrier is 0");
                }
                yield (warp, lanes) -> warp.arrive(lanes);
            }
            case "bar.warp.sync" -> {
                Operands.Row members = operands.source(statement, operand, "b32");
                yield (warp, lanes) -> {
                    checkMembers(warp, lanes, members);
                    warp.barriers++;
                };
            }
            default -> throw Decoder.unknown(statement);
        };
    }

    private static void checkMembers(Warp warp, int lanes, Operands.Row members) {
        for (int left = lanes; left != 0; left &= left - 1) {
            warp.checkMembers(warp.words[members.first() + Integer.numberOfTrailingZeros(left)], lanes);
        }
    }

    /** {@code d, a, b, c, mask}: {@code b} is a lane or a distance, {@code c} bounds the lanes. */
    private Operation shuffle(Statement statement, String[] parts) {
        if (parts.length != 4 || !parts[1].equals("sync") || !parts[3].equals("b32")) {
            throw Decoder.unknown(statement);
        }
        Shuffle mode = switch (parts[2]) {
            case "up" -> Shuffle.UP;
            case "bfly" -> Shuffle.BUTTERFLY;
            case "idx" -> Shuffle.INDEX;
            default -> throw Decoder.unknown(statement);
        };
        Decoder.count(statement, 5);
        Operands.Row to = operands.result(statement, statement.operands().getFirst(), "b32");
        List<Operands.Row> rows = new ArrayList<>();
        for (String operand : statement.operands().subList(1, 5)) {
            rows.add(operands.source(statement, operand, "b32"));
        }
        int a = rows.get(0).first();
        int b = rows.get(1).first();
        int c = rows.get(2).first();
        Operands.Row members = rows.get(3);
        return (warp, lanes) -> {
            checkMembers(warp, lanes, members);
            int[] words = warp.words;
            int[] values = new int[Warp.LANES];
            System.arraycopy(words, a, values, 0, Warp.LANES);
            for (int left = lanes; left != 0; left &= left - 1) {
                int lane = Integer.numberOfTrailingZeros(left);
                int distance = words[b + lane] & LANE_MASK;
                int clamp = words[c + lane] & LANE_MASK;
                int segment = words[c + lane] >>> 8 & LANE_MASK;
                int last = lane & segment | clamp & ~segment;
                int from = switch (mode) {
                    case UP -> lane - distance;
                    case BUTTERFLY -> lane ^ distance;
                    case INDEX -> lane & segment | distance & ~segment;
                };
                boolean in = mode == Shuffle.UP ? from >= last : from <= last;
                if (in && (lanes >>> from & 1) == 0) {
                    throw KernelFinding.failed(
                            lane, "takes the value of lane %d, which is not at the instruction", from);
                }
                words[to.first() + lane] = values[in ? from : lane];
            }
            warp.barriers++;
        };
    }

    /** Matrices of 8 rows of 16 bytes; 8 lanes have the addresses of the rows of each. */
    private Operation loadMatrices(Statement statement) {
        boolean transposed = switch (statement.opcode()) {
            case "ldmatrix.sync.aligned.m8n8.x4.shared.b16" -> false;
            case "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16" -> true;
            default -> throw Decoder.unknown(statement);
        };
        Decoder.count(statement, 2);
        List<String> names = Operands.elements(statement.operands().getFirst());
        if (names.size() != MATRICES) {
            throw statement.refused("%d registers, not %d".formatted(names.size(), MATRICES));
        }
        int[] rows = new int[MATRICES];
        for (int i = 0; i < MATRICES; i++) {
            rows[i] = operands.result(statement, names.get(i), "b32").first();
        }
        Operands.Address address =
                operands.address(statement, statement.operands().getLast(), true);
        return (warp, lanes) -> {
            warp.checkMembers(Warp.ALL, lanes);
            BlockMemory shared = warp.block.shared;
            int[] at = new int[MATRICES * ROWS];
            for (int i = 0; i < at.length; i++) {
                at[i] = shared.read(warp, BlockMemory.EACH_LANE, address.of(warp, i), ROW_BYTES);
            }
            for (int matrix = 0; matrix < MATRICES; matrix++) {
                for (int lane = 0; lane < Warp.LANES; lane++) {
                    int row = lane / 4;
                    int column = lane % 4 * 2;
                    int value;
                    if (transposed) {
                        int low = (short)
                                Elements.SHORT.get(shared.bytes, at[matrix * ROWS + column] + row * Short.BYTES);
                        int high = (short)
                                Elements.SHORT.get(shared.bytes, at[matrix * ROWS + column + 1] + row * Short.BYTES);
                        value = low & 0xffff | high << Short.SIZE;
                    } else {
                        value = (int) Elements.INT.get(shared.bytes, at[matrix * ROWS + row] + column * Short.BYTES);
                    }
                    warp.words[rows[matrix] + lane] = value;
                }
            }
        };
    }
}
