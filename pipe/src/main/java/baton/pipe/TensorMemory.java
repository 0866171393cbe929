package baton.pipe;

import java.lang.foreign.Arena;
import java.util.List;

/** Memory of tensors. Safe for use by several threads. */
@FunctionalInterface
public interface TensorMemory {
    /** Native memory of the host, for each tensor on its own. */
    TensorMemory HOST = (type, shape) -> {
        long bytes = Tensor.bytes(type, shape);
        Arena arena = Arena.ofShared();
        try {
            TensorBytes data =
                    new TensorBytes.Host(arena.allocate(Math.max(1, bytes), 64).asSlice(0, bytes));
            return new Tensor(type, shape, data, arena::close);
        } catch (RuntimeException | Error e) {
            arena.close();
            throw e;
        }
    };

    /** Memory for a tensor, with any content, until the tensor is closed. */
    Tensor allocate(Tensor.Type type, List<Long> shape);
}
