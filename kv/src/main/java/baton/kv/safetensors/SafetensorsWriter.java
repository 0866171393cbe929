package baton.kv.safetensors;

import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/** Writes safetensors files as a stream: the header, then one tensor after the other, none of which need be in memory at once. */
public final class SafetensorsWriter {
    private static final long MAX_CHUNK_BYTES = 1 << 26;

    private SafetensorsWriter() {}

    /** Gives the bytes of a tensor when its turn to be written has come. */
    @FunctionalInterface
    public interface Source {
        MemorySegment bytes() throws IOException;
    }

    /**
     * A tensor to write.
     *
     * @param dtype safetensors' name of the element type, e.g. {@code BF16}
     * @param shape its dimensions, outermost first
     * @param source its bytes, dense and little-endian, in memory that a {@code ByteBuffer} can view
     */
    public record Tensor(String name, String dtype, List<Long> shape, Source source) {
        public Tensor {
            shape = List.copyOf(shape);
        }
    }

    /**
     * Writes a new file or replaces an existing one. The file is not there whole before this returns; a caller that needs it atomic
     * writes under another name and moves it.
     *
     * @param metadata the file's {@code __metadata__}, left out if empty
     * @throws IllegalArgumentException if a name occurs twice, a dtype is unknown, or a source's size is not its shape's
     */
    public static void write(Path file, Map<String, String> metadata, List<Tensor> tensors) throws IOException {
        try (FileChannel channel = FileChannel.open(
                file, StandardOpenOption.CREATE, StandardOpenOption.WRITE, StandardOpenOption.TRUNCATE_EXISTING)) {
            write(channel, metadata, tensors);
        }
    }

    /** Writes as {@link #write(Path, Map, List)} does, at the channel's position. The channel stays open. */
    public static void write(FileChannel channel, Map<String, String> metadata, List<Tensor> tensors)
            throws IOException {
        Map<String, TensorInfo> infos = layOut(tensors);
        writeFully(channel, SafetensorsHeader.encode(metadata, infos));
        for (Tensor tensor : tensors) {
            MemorySegment bytes = tensor.source().bytes();
            long wanted = Objects.requireNonNull(infos.get(tensor.name())).bytes();
            if (bytes.byteSize() != wanted) {
                throw new IllegalArgumentException("tensor %s: source gave %d bytes, shape %s of %s is %d bytes"
                        .formatted(tensor.name(), bytes.byteSize(), tensor.shape(), tensor.dtype(), wanted));
            }
            for (long at = 0; at < wanted; at += MAX_CHUNK_BYTES) {
                MemorySegment chunk = bytes.asSlice(at, Math.min(MAX_CHUNK_BYTES, wanted - at));
                writeFully(channel, chunk.asByteBuffer());
            }
        }
    }

    private static Map<String, TensorInfo> layOut(List<Tensor> tensors) {
        Map<String, TensorInfo> infos = new LinkedHashMap<>();
        long at = 0;
        for (Tensor tensor : tensors) {
            int elementBytes = TensorInfo.elementBytes(tensor.dtype());
            if (elementBytes == 0) {
                throw new IllegalArgumentException(
                        "tensor %s: unknown dtype '%s'".formatted(tensor.name(), tensor.dtype()));
            }
            long elements = new TensorInfo(tensor.dtype(), tensor.shape(), 0, 0).elements();
            long end = at + Math.multiplyExact(elements, elementBytes);
            if (infos.put(tensor.name(), new TensorInfo(tensor.dtype(), tensor.shape(), at, end)) != null) {
                throw new IllegalArgumentException("tensor %s: occurs twice".formatted(tensor.name()));
            }
            at = end;
        }
        return infos;
    }

    private static void writeFully(FileChannel channel, ByteBuffer bytes) throws IOException {
        while (bytes.hasRemaining()) {
            channel.write(bytes);
        }
    }
}
