package baton.kv.safetensors;

import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Map;
import java.util.Set;

/** A safetensors file. */
public final class SafetensorsFile implements TensorFile {
    private final Path path;
    private final SafetensorsHeader header;
    private final Arena arena;
    private final MemorySegment data;

    private SafetensorsFile(Path path, SafetensorsHeader header, Arena arena, MemorySegment data) {
        this.path = path;
        this.header = header;
        this.arena = arena;
        this.data = data;
    }

    /**
     * Maps the file and reads its header.
     *
     * @throws SafetensorsException naming the file if it is malformed or shorter than its header says
     * @throws IOException if the file cannot be read
     */
    public static SafetensorsFile open(Path path) throws IOException {
        try (FileChannel channel = FileChannel.open(path, StandardOpenOption.READ)) {
            SafetensorsHeader header = SafetensorsHeader.read(channel, path.toString());
            Arena arena = Arena.ofShared();
            try {
                MemorySegment whole = channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size(), arena);
                return new SafetensorsFile(path, header, arena, whole.asSlice(header.dataStart()));
            } catch (IOException | RuntimeException e) {
                arena.close();
                throw e;
            }
        }
    }

    @Override
    public Path path() {
        return path;
    }

    /** The file's {@code __metadata__}. */
    public Map<String, String> metadata() {
        return header.metadata();
    }

    /** The tensors in the header's order. */
    @Override
    public Set<String> names() {
        return header.tensors().keySet();
    }

    @Override
    public TensorInfo info(String name) throws SafetensorsException {
        TensorInfo info = header.tensors().get(name);
        if (info == null) {
            throw new SafetensorsException("%s: has no tensor '%s'".formatted(path, name));
        }
        return info;
    }

    @Override
    public MemorySegment data(String name) throws SafetensorsException {
        TensorInfo info = info(name);
        return data.asSlice(info.begin(), info.bytes());
    }

    @Override
    public void close() {
        arena.close();
    }
}
