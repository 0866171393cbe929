package baton.cuda.sim;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;

/** Instructions that access parameters, global memory and shared memory. */
final class MemoryInstructions {
    private static final Set<String> TYPES = Set.of("u8", "b16", "b32", "u32", "f32", "b64", "u64");
    private static final int LARGEST = 16;

    private final Operands operands;
    private int leastShared = LARGEST;
    private int leastGlobal = LARGEST;

    MemoryInstructions(Operands operands) {
        this.operands = operands;
    }

    /** A unit of shared memory is {@code 1 << sharedShift} bytes: the least that an instruction accesses. */
    int sharedShift() {
        return Integer.numberOfTrailingZeros(leastShared);
    }

    int globalShift() {
        return Integer.numberOfTrailingZeros(leastGlobal);
    }

    Operation operation(Statement statement, String[] parts) {
        if (parts[0].equals("cp")) {
            return copy(statement);
        }
        if (parts.length < 3) {
            throw Decoder.unknown(statement);
        }
        String type = parts[parts.length - 1];
        int count = 1;
        for (int i = 2; i < parts.length - 1; i++) {
            if (parts[i].equals("v2") || parts[i].equals("v4")) {
                count = parts[i].charAt(1) - '0';
            } else if (!parts[i].equals("nc")) {
                throw Decoder.unknown(statement);
            }
        }
        if (!TYPES.contains(type)) {
            throw Decoder.unknown(statement);
        }
        Decoder.count(statement, 2);
        boolean load = parts[0].equals("ld");
        return switch (parts[1]) {
            case "param" -> {
                if (!load || !statement.opcode().equals("ld.param." + type)) {
                    throw Decoder.unknown(statement);
                }
                yield parameter(statement, type);
            }
            case "global" -> {
                GlobalAccess access = new GlobalAccess(
                        address(statement, load, false),
                        elements(statement, load, type, count),
                        List.of(parts).contains("nc"));
                if (load) {
                    yield (warp, lanes) -> access.load(warp, lanes);
                }
                leastGlobal = Math.min(leastGlobal, access.elements.size());
                yield (warp, lanes) -> access.store(warp, lanes);
            }
            case "shared" -> {
                Operands.Address address = address(statement, load, true);
                Elements elements = elements(statement, load, type, count);
                leastShared = Math.min(leastShared, elements.size());
                yield load ? sharedLoad(address, elements) : sharedStore(address, elements);
            }
            default -> throw Decoder.unknown(statement);
        };
    }

    private Operands.Address address(Statement statement, boolean load, boolean shared) {
        return operands.address(statement, statement.operands().get(load ? 1 : 0), shared);
    }

    private Elements elements(Statement statement, boolean load, String type, int count) {
        List<String> names = Operands.elements(statement.operands().get(load ? 0 : 1));
        int bytes = LaneInstruction.bits(type) / Byte.SIZE;
        if (names.size() != count || bytes * count > LARGEST) {
            throw statement.refused("%d registers of %d bytes".formatted(names.size(), bytes));
        }
        List<Operands.Row> rows = new ArrayList<>();
        for (String name : names) {
            rows.add(
                    load
                            ? operands.widerRegister(statement, name, type)
                            : operands.source(statement, name, type, true));
        }
        return new Elements(bytes, rows.toArray(Operands.Row[]::new));
    }

    private Operation parameter(Statement statement, String type) {
        int index = operands.parameter(statement, statement.operands().getLast(), type);
        Operands.Row to = operands.result(statement, statement.operands().getFirst(), type);
        return (warp, lanes) -> {
            long value = warp.block.launch.arguments()[index];
            for (int left = lanes; left != 0; left &= left - 1) {
                int lane = Integer.numberOfTrailingZeros(left);
                if (to.wide()) {
                    warp.longs[to.first() + lane] = value;
                } else {
                    warp.words[to.first() + lane] = (int) value;
                }
            }
        };
    }

    private static Operation sharedLoad(Operands.Address address, Elements elements) {
        int size = elements.size();
        return (warp, lanes) -> {
            BlockMemory shared = warp.block.shared;
            int first = Integer.numberOfTrailingZeros(lanes);
            if (lanes != 1 << first && address.isSame(warp, lanes)) {
                int at = shared.read(warp, BlockMemory.EACH_LANE, address.of(warp, first), size);
                for (int left = lanes; left != 0; left &= left - 1) {
                    elements.load(warp, Integer.numberOfTrailingZeros(left), shared.bytes, at);
                }
                return;
            }
            for (int left = lanes; left != 0; left &= left - 1) {
                int lane = Integer.numberOfTrailingZeros(left);
                elements.load(warp, lane, shared.bytes, shared.read(warp, lane, address.of(warp, lane), size));
            }
        };
    }

    private static Operation sharedStore(Operands.Address address, Elements elements) {
        int size = elements.size();
        return (warp, lanes) -> {
            BlockMemory shared = warp.block.shared;
            for (int left = lanes; left != 0; left &= left - 1) {
                int lane = Integer.numberOfTrailingZeros(left);
                elements.store(warp, lane, shared.bytes, shared.write(warp, lane, address.of(warp, lane), size));
            }
        };
    }

    private Operation copy(Statement statement) {
        List<String> names = statement.operands();
        return switch (statement.opcode()) {
            case "cp.async.commit_group" -> {
                Decoder.count(statement, 0);
                yield (warp, lanes) -> warp.copies.commit(lanes);
            }
            case "cp.async.wait_group" -> {
                Decoder.count(statement, 1);
                int pending = Operands.immediate(statement, names.getFirst());
                yield (warp, lanes) -> warp.copies.await(warp, lanes, pending);
            }
            case "cp.async.cg.shared.global" -> asynchronous(statement);
            default -> throw Decoder.unknown(statement);
        };
    }

    private Operation asynchronous(Statement statement) {
        List<String> names = statement.operands();
        Decoder.count(statement, 4);
        int size = Operands.immediate(statement, names.get(2));
        if (size != LARGEST) {
            throw statement.refused("%d bytes: .cg copies %d".formatted(size, LARGEST));
        }
        Operands.Address to = operands.address(statement, names.get(0), true);
        GlobalAccess from =
                new GlobalAccess(operands.address(statement, names.get(1), false), new Elements(size), false);
        Operands.Row bytes = operands.source(statement, names.getLast(), "u32");
        return (warp, lanes) -> {
            Allocation[] allocations = new Allocation[Warp.LANES];
            int[] fromFirst = new int[Warp.LANES];
            int[] toFirst = new int[Warp.LANES];
            int[] counts = new int[Warp.LANES];
            for (int left = lanes; left != 0; left &= left - 1) {
                int lane = Integer.numberOfTrailingZeros(left);
                int count = warp.words[bytes.first() + lane];
                if (count < 0 || count > size) {
                    throw KernelFinding.failed(lane, "copies %d of %d bytes", count, size);
                }
                counts[lane] = count;
                toFirst[lane] = warp.block.shared.willWrite(warp, lane, to.of(warp, lane), size);
                if (count > 0) {
                    allocations[lane] = from.read(warp, lane, count);
                    fromFirst[lane] = (int) (from.address(warp, lane) - allocations[lane].base);
                }
            }
            warp.copies.begin(allocations, fromFirst, toFirst, counts, size, lanes);
        };
    }
}
