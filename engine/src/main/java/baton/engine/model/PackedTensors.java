package baton.engine.model;

import baton.kv.DType;
import baton.kv.safetensors.PackedTensorFile;
import baton.kv.safetensors.TensorInfo;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;

/** Tensors that are made of those in a checkpoint's files, which the checkpoint closes. */
final class PackedTensors implements PackedTensorFile {
    private final Path path;
    private final Map<String, Tensor> tensors = new HashMap<>();

    private record Tensor(List<Long> shape, MemorySegment data, Rows rows) {}

    /** @param path of the checkpoint */
    PackedTensors(Path path) {
        this.path = path;
    }

    /** @param data in the files, by which the tensor is known from others */
    void add(String name, List<Long> shape, MemorySegment data, Rows rows) {
        tensors.put(name, new Tensor(shape, data, rows));
    }

    @Override
    public Path path() {
        return path;
    }

    @Override
    public Set<String> names() {
        return tensors.keySet();
    }

    /** The description of a tensor, with the type that rows are unpacked to. */
    @Override
    public TensorInfo info(String name) {
        Tensor tensor = tensor(name);
        return new TensorInfo(DType.F32.safetensorsName(), tensor.shape, 0, tensor.data.byteSize());
    }

    @Override
    public MemorySegment data(String name) {
        return tensor(name).data;
    }

    @Override
    public Rows rows(String name) {
        return tensor(name).rows;
    }

    private Tensor tensor(String name) {
        return Objects.requireNonNull(tensors.get(name), name);
    }

    @Override
    public void close() {}
}
