package baton.kv.safetensors;

import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.Set;

/** A file of tensors, mapped into memory. The segments it gives out end with {@link #close}; it may be read by many threads. */
public interface TensorFile extends AutoCloseable {
    /** Where it is. */
    Path path();

    /** The tensors' names. */
    Set<String> names();

    /** @throws SafetensorsException if the file has no such tensor */
    TensorInfo info(String name) throws SafetensorsException;

    /**
     * The tensor's bytes, read-only, straight from the mapping.
     *
     * @throws SafetensorsException if the file has no such tensor
     */
    MemorySegment data(String name) throws SafetensorsException;

    /** Unmaps the file. */
    @Override
    void close();
}
