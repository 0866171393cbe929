package baton.store.prompt;

import baton.kv.ConfigException;
import baton.kv.safetensors.SafetensorsException;
import baton.kv.safetensors.SafetensorsHeader;
import baton.kv.safetensors.TensorInfo;
import baton.store.FileOperations;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.zip.CRC32C;

/**
 * The files of an entry: safetensors with one tensor {@code kv_cache}, and metadata that say which model it is of, how it is laid out, and
 * its checksum. For a file's form see {@link SharedStorage}.
 *
 * @param format of the entries that are read and written
 * @param layouts of the files
 */
record LayerFiles(SharedStorage.Format format, SharedStorage.Layouts layouts, FileOperations files) {
    static final String TENSOR = "kv_cache";
    private static final String MODEL = "baton.model";
    private static final String DTYPE = "baton.dtype";
    private static final String LAYOUT = "baton.layout";
    private static final String CHECKSUM = "baton.crc32c";
    private static final String OWN_KEYS = "baton.";

    /** Far more than one tensor's header needs; bounds the memory that a hostile file makes this process allocate. */
    private static final int MAX_HEADER_BYTES = 64 * 1024;

    /** Small enough to stay in cache between the copy and the checksum. */
    private static final int CHUNK_BYTES = 1 << 20;

    /**
     * Checks all of a file but its data.
     *
     * @return whether its metadata say that it is of this model; false of a foreign file
     * @throws IOException if the file cannot be taken
     */
    boolean isProven(Path file, int tokens) throws IOException {
        try (FileChannel channel = open(file)) {
            return check(channel, file, tokens).checksum.isPresent();
        }
    }

    /**
     * Reads a file's data and verifies its checksum.
     *
     * @param into filled as {@code [tokens, kv_heads, 2*head_dim]}; undefined if this throws
     */
    void read(Path file, int tokens, MemorySegment into) throws IOException {
        try (FileChannel channel = open(file)) {
            Contents found = check(channel, file, tokens);
            if (!found.split && found.layout.equals(TensorLayout.GPU)) {
                readData(channel, found, into, file);
                return;
            }
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment data = arena.allocate(into.byteSize(), 64);
                readData(channel, found, data, file);
                if (found.split) {
                    join(data, into);
                } else {
                    found.layout.unpack(data, into, format);
                }
            }
        }
    }

    /**
     * Writes a file.
     *
     * @param plain {@code [tokens, kv_heads, 2*head_dim]}, native
     */
    void write(Path file, int tokens, MemorySegment plain) throws IOException {
        if (layouts.written().equals(TensorLayout.GPU)) {
            writeData(file, tokens, plain);
            return;
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment packed = arena.allocate(plain.byteSize(), 64);
            layouts.written().pack(plain, packed, format);
            writeData(file, tokens, packed);
        }
    }

    private void writeData(Path file, int tokens, MemorySegment data) throws IOException {
        CRC32C checksum = new CRC32C();
        for (ByteBuffer chunk : chunks(data)) {
            checksum.update(chunk);
        }
        Map<String, String> metadata = new LinkedHashMap<>();
        metadata.put(MODEL, format.model());
        metadata.put(DTYPE, format.dtype().torchName());
        metadata.put(LAYOUT, layouts.written().recorded());
        metadata.put(CHECKSUM, hex(checksum));
        TensorInfo tensor = new TensorInfo(format.dtype().safetensorsName(), format.shape(tokens), 0, data.byteSize());
        try (FileChannel channel = files.create(file)) {
            writeFully(channel, SafetensorsHeader.encode(metadata, Map.of(TENSOR, tensor)));
            for (ByteBuffer chunk : chunks(data)) {
                writeFully(channel, chunk);
            }
        }
    }

    /** Opens a file that is surely a regular one: opening a pipe would wait for its writer. */
    private FileChannel open(Path file) throws IOException {
        if (!files.attributes(file).isRegularFile()) {
            throw new SafetensorsException(file + ": is not a regular file");
        }
        return files.openToRead(file);
    }

    private Contents check(FileChannel channel, Path file, int tokens) throws IOException {
        ByteBuffer length = ByteBuffer.allocate(Long.BYTES).order(ByteOrder.LITTLE_ENDIAN);
        while (length.hasRemaining() && channel.read(length, length.position()) >= 0) {
            // Reads until the length is there or the file ends.
        }
        if (!length.hasRemaining() && length.getLong(0) > MAX_HEADER_BYTES) {
            throw new SafetensorsException("%s: header of %d bytes; at most %d are accepted"
                    .formatted(file, length.getLong(0), MAX_HEADER_BYTES));
        }
        SafetensorsHeader header = SafetensorsHeader.read(channel, file.toString());
        TensorInfo tensor = header.tensors().get(TENSOR);
        if (tensor == null) {
            throw new SafetensorsException(file + ": has no tensor " + TENSOR);
        }
        Map<String, String> metadata = header.metadata();
        boolean own = metadata.keySet().stream().anyMatch(key -> key.startsWith(OWN_KEYS));
        if (own) {
            requireSame(file, MODEL, required(file, metadata, MODEL), format.model());
        }
        requireSame(file, "dtype", tensor.dtype(), format.dtype().safetensorsName());
        if (own) {
            requireSame(
                    file, DTYPE, required(file, metadata, DTYPE), format.dtype().torchName());
        }
        List<Long> shape = tensor.shape();
        boolean split = shape.size() == 4 && !format.latent();
        List<Long> expected = split
                ? List.of(2L, (long) tokens, (long) format.kvHeads(), (long) format.headDim())
                : format.shape(tokens);
        if (!shape.equals(expected)) {
            List<Long> otherTokens = new ArrayList<>(expected);
            int tokenDimension = split ? 1 : 0;
            if (shape.size() == expected.size()) {
                otherTokens.set(tokenDimension, shape.get(tokenDimension));
            }
            String message = "%s: shape is %s, expected %s".formatted(file, shape, expected);
            // Other tokens than the name stands for: its writer did not complete it.
            throw shape.equals(otherTokens)
                    ? new SafetensorsException(message)
                    : new StorageException(StorageException.Fault.INCOMPATIBLE, message);
        }
        TensorLayout layout = own
                ? recordedLayout(file, required(file, metadata, LAYOUT))
                : layouts.foreign()
                        .orElseThrow(
                                () -> new StorageException(
                                        StorageException.Fault.FOREIGN,
                                        file
                                                + " has no metadata of Baton's, and shared_storage_foreign_layout does not say how keys and values lie in it"));
        if (tokens % layout.blockSize() != 0 || ((split || format.latent()) && !layout.equals(TensorLayout.GPU))) {
            throw new StorageException(
                    StorageException.Fault.INCOMPATIBLE,
                    "%s: shape is %s, which %s in blocks of %d tokens cannot have"
                            .formatted(file, shape, layout.interior().settingName(), layout.blockSize()));
        }
        return new Contents(
                header.dataStart() + tensor.begin(),
                split,
                layout,
                own ? Optional.of(required(file, metadata, CHECKSUM)) : Optional.empty());
    }

    private static String required(Path file, Map<String, String> metadata, String key) throws SafetensorsException {
        String value = metadata.get(key);
        if (value == null) {
            throw new SafetensorsException(file + ": has metadata of Baton's, but no " + key);
        }
        return value;
    }

    private TensorLayout recordedLayout(Path file, String recorded) throws StorageException {
        try {
            return TensorLayout.parseRecorded(LAYOUT, recorded, format.headDim(), format.dtype());
        } catch (ConfigException e) {
            throw new StorageException(StorageException.Fault.INCOMPATIBLE, file + ": " + e.getMessage());
        }
    }

    private static void requireSame(Path file, String name, String found, String expected) throws StorageException {
        if (!found.equals(expected)) {
            throw new StorageException(
                    StorageException.Fault.INCOMPATIBLE,
                    "%s: %s is %s, this instance's is %s".formatted(file, name, found, expected));
        }
    }

    private static void readData(FileChannel channel, Contents from, MemorySegment into, Path file) throws IOException {
        CRC32C checksum = new CRC32C();
        long at = from.dataStart;
        for (ByteBuffer chunk : chunks(into)) {
            while (chunk.hasRemaining()) {
                int read = channel.read(chunk, at);
                if (read < 0) {
                    throw new SafetensorsException("%s: ends at %d, inside its data".formatted(file, at));
                }
                at += read;
            }
            checksum.update(chunk.flip());
        }
        if (from.checksum.isPresent() && !from.checksum.get().equals(hex(checksum))) {
            throw new StorageException(
                    StorageException.Fault.DIGEST,
                    "%s: data has crc32c=%s, recorded is %s".formatted(file, hex(checksum), from.checksum.get()));
        }
    }

    /** {@code [2, tokens, kv_heads, head_dim]} to {@code [tokens, kv_heads, 2*head_dim]}. */
    private void join(MemorySegment split, MemorySegment plain) {
        long vector = (long) format.headDim() * format.dtype().bytes();
        long values = plain.byteSize() / 2;
        for (long from = 0, to = 0; from < values; from += vector, to += 2 * vector) {
            MemorySegment.copy(split, from, plain, to, vector);
            MemorySegment.copy(split, values + from, plain, to + vector, vector);
        }
    }

    private static List<ByteBuffer> chunks(MemorySegment memory) {
        List<ByteBuffer> chunks = new ArrayList<>();
        for (long at = 0; at < memory.byteSize(); at += CHUNK_BYTES) {
            chunks.add(memory.asSlice(at, Math.min(CHUNK_BYTES, memory.byteSize() - at))
                    .asByteBuffer());
        }
        return chunks;
    }

    private static void writeFully(FileChannel channel, ByteBuffer bytes) throws IOException {
        while (bytes.hasRemaining()) {
            channel.write(bytes);
        }
    }

    private static String hex(CRC32C checksum) {
        return "%08x".formatted(checksum.getValue());
    }

    /** @param split whether all keys come before all values */
    private record Contents(long dataStart, boolean split, TensorLayout layout, Optional<String> checksum) {}
}
