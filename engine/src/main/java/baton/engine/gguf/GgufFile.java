package baton.engine.gguf;

import baton.kv.ConfigException;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/**
 * One GGUF file of version 2 or 3, mapped into memory
 * (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). The header's key-value pairs and tensors are checked when the file is
 * opened: each length and count against its bound and the bytes that follow, each tensor against the file and the other tensors.
 * Values stay in the file until they are asked for, so a header of any size takes little of the heap.
 */
public final class GgufFile implements AutoCloseable {
    private static final int MAGIC = 0x46554747;
    private static final int DIMENSIONS = 4;
    private static final int NESTED_ARRAYS = 4;
    private static final long MAX_HEADER_BYTES = 1L << 30;
    private static final int MAX_PAIRS = 1 << 14;
    private static final int MAX_TENSORS = 1 << 17;
    private static final int MAX_NAME_BYTES = 256;
    private static final int MAX_STRING_BYTES = 16 << 20;
    private static final int MAX_ELEMENTS = 1 << 20;

    private static final ValueLayout.OfShort SHORT =
            ValueLayout.JAVA_SHORT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);
    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);

    private final Path path;
    private final Arena arena;
    private final MemorySegment file;
    private final Map<String, Value> values = new LinkedHashMap<>();
    private final Map<String, Tensor> tensors = new LinkedHashMap<>();

    /** Where the header is read next. */
    private long at;

    /** Types of values, in the order of their numbers in files. */
    private enum Kind {
        UINT8(1),
        INT8(1),
        UINT16(2),
        INT16(2),
        UINT32(4),
        INT32(4),
        FLOAT32(4),
        BOOL(1),
        STRING(0),
        ARRAY(0),
        UINT64(8),
        INT64(8),
        FLOAT64(8);

        private final int bytes;

        /** @param bytes of each value; 0: they differ */
        Kind(int bytes) {
            this.bytes = bytes;
        }
    }

    /**
     * A value, or the elements of an array.
     *
     * @param kind of the value or of each element
     * @param start of the first one in the file
     */
    private record Value(Kind kind, boolean isArray, long count, long start) {}

    /**
     * A tensor.
     *
     * @param shape outermost first, as in checkpoints
     * @param start in the file
     */
    record Tensor(GgufType type, List<Long> shape, long start, long bytes) {
        /** Elements of a row. */
        long columns() {
            return shape.getLast();
        }
    }

    private GgufFile(Path path, Arena arena, MemorySegment file) {
        this.path = path;
        this.arena = arena;
        this.file = file;
    }

    /**
     * Maps a file and reads its header.
     *
     * @throws ConfigException naming the file, the place and the value if it is damaged or of a kind that is not supported
     * @throws IOException if it cannot be read
     */
    static GgufFile open(Path path) throws IOException {
        try (FileChannel channel = FileChannel.open(path, StandardOpenOption.READ)) {
            Arena arena = Arena.ofShared();
            try {
                GgufFile file =
                        new GgufFile(path, arena, channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size(), arena));
                file.readHeader();
                return file;
            } catch (IOException | RuntimeException e) {
                arena.close();
                throw e;
            }
        }
    }

    Map<String, Tensor> tensors() {
        return Collections.unmodifiableMap(tensors);
    }

    Set<String> keys() {
        return Collections.unmodifiableSet(values.keySet());
    }

    /** A tensor's bytes in the mapped file. */
    MemorySegment data(Tensor tensor) {
        return file.asSlice(tensor.start, tensor.bytes);
    }

    /** The value of a key; empty if it is not there. */
    public Optional<String> string(String key) {
        return single(key, "a string", Kind.STRING).map(value -> text(value.start, key));
    }

    /** Reads as {@link #string} does, a whole number from 0 to 2^31-1. */
    public Optional<Integer> integer(String key) {
        return single(
                        key,
                        "a whole number",
                        Kind.UINT8,
                        Kind.INT8,
                        Kind.UINT16,
                        Kind.INT16,
                        Kind.UINT32,
                        Kind.INT32,
                        Kind.UINT64,
                        Kind.INT64)
                .map(value -> {
                    long number = whole(value);
                    if (number < 0 || number > Integer.MAX_VALUE) {
                        throw damaged(
                                key,
                                "is %s, must be from 0 to 2147483647"
                                        .formatted(
                                                value.kind == Kind.UINT64
                                                        ? Long.toUnsignedString(number)
                                                        : Long.toString(number)));
                    }
                    return (int) number;
                });
    }

    /** The shortest decimal number of those that round to the value. */
    Optional<Double> number(String key) {
        return single(key, "a floating-point number", Kind.FLOAT32, Kind.FLOAT64)
                .map(value -> {
                    double number = value.kind == Kind.FLOAT64
                            ? file.get(
                                    ValueLayout.JAVA_DOUBLE_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN), value.start)
                            : Double.parseDouble(Float.toString(Float.intBitsToFloat(file.get(INT, value.start))));
                    if (!Double.isFinite(number)) {
                        throw damaged(key, "is " + number + ", must be finite");
                    }
                    return number;
                });
    }

    /** Reads as {@link #string} does, true or false. */
    public Optional<Boolean> bool(String key) {
        return single(key, "true or false", Kind.BOOL).map(value -> file.get(ValueLayout.JAVA_BYTE, value.start) != 0);
    }

    /** As {@link #string}, an array. */
    public Optional<List<String>> strings(String key) {
        return array(key, "strings", Kind.STRING).map(value -> {
            List<String> strings = new ArrayList<>();
            long next = value.start;
            long bytes = 0;
            for (long i = 0; i < value.count; i++) {
                long length = file.get(LONG, next);
                bytes += length;
                if (bytes > 2 * MAX_STRING_BYTES) {
                    throw damaged(key, "has strings of more than %d bytes".formatted(2 * MAX_STRING_BYTES));
                }
                strings.add(text(next, key + "[" + i + "]"));
                next += Long.BYTES + length;
            }
            return strings;
        });
    }

    /** As {@link #string}, an array. */
    public Optional<int[]> integers(String key) {
        return array(key, "32-bit whole numbers", Kind.INT32, Kind.UINT32)
                .map(value -> IntStream.range(0, (int) value.count)
                        .map(i -> file.get(INT, value.start + 4L * i))
                        .toArray());
    }

    /** As {@link #string}, an array. */
    Optional<boolean[]> bools(String key) {
        return array(key, "true or false", Kind.BOOL).map(value -> {
            boolean[] bools = new boolean[(int) value.count];
            for (int i = 0; i < bools.length; i++) {
                bools[i] = file.get(ValueLayout.JAVA_BYTE, value.start + i) != 0;
            }
            return bools;
        });
    }

    /** Whether the key has an array. */
    boolean isArray(String key) {
        Value value = values.get(key);
        return value != null && value.isArray;
    }

    /** As {@link #string}, an array. */
    public Optional<float[]> floats(String key) {
        return array(key, "32-bit floating-point numbers", Kind.FLOAT32).map(value -> {
            float[] floats = new float[(int) value.count];
            MemorySegment.copy(
                    file,
                    ValueLayout.JAVA_FLOAT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN),
                    value.start,
                    floats,
                    0,
                    floats.length);
            return floats;
        });
    }

    /** An error that names the file, a key or tensor of it, and the problem. */
    public ConfigException damaged(String what, String problem) {
        return new ConfigException(path + ": " + what, problem);
    }

    @Override
    public void close() {
        arena.close();
    }

    private Optional<Value> single(String key, String wanted, Kind... kinds) {
        return value(key, false, wanted, kinds);
    }

    private Optional<Value> array(String key, String wanted, Kind... kinds) {
        Optional<Value> found = value(key, true, "an array of " + wanted, kinds);
        found.filter(value -> value.count > MAX_ELEMENTS).ifPresent(value -> {
            throw damaged(key, "has %d elements, must have at most %d".formatted(value.count, MAX_ELEMENTS));
        });
        return found;
    }

    private Optional<Value> value(String key, boolean isArray, String wanted, Kind... kinds) {
        Optional<Value> found = Optional.ofNullable(values.get(key));
        found.filter(value -> value.isArray != isArray || !Set.of(kinds).contains(value.kind))
                .ifPresent(value -> {
                    throw damaged(key, "must be %s, is %s".formatted(wanted, describe(value)));
                });
        return found;
    }

    private static String describe(Value value) {
        return value.isArray ? "an array of %d %s".formatted(value.count, value.kind) : value.kind.toString();
    }

    private long whole(Value value) {
        return switch (value.kind) {
            case UINT8 -> file.get(ValueLayout.JAVA_BYTE, value.start) & 0xff;
            case INT8 -> file.get(ValueLayout.JAVA_BYTE, value.start);
            case UINT16 -> file.get(SHORT, value.start) & 0xffff;
            case INT16 -> file.get(SHORT, value.start);
            case UINT32 -> file.get(INT, value.start) & 0xffffffffL;
            case INT32 -> file.get(INT, value.start);
            default -> file.get(LONG, value.start);
        };
    }

    /** @param start of a string; its length was checked */
    private String text(long start, String name) {
        long length = file.get(LONG, start);
        if (length > MAX_STRING_BYTES) {
            throw damaged(name, "has %d bytes, must have at most %d".formatted(length, MAX_STRING_BYTES));
        }
        try {
            return StandardCharsets.UTF_8
                    .newDecoder()
                    .decode(file.asSlice(start + Long.BYTES, length).asByteBuffer())
                    .toString();
        } catch (CharacterCodingException e) {
            throw new ConfigException(path + ": " + name, "is not UTF-8 text", e);
        }
    }

    private void readHeader() {
        int magic = (int) whole("magic", 4);
        if (magic != MAGIC) {
            throw damaged("magic", "is 0x%08x, must be 0x%08x: this is no GGUF file".formatted(magic, MAGIC));
        }
        long version = whole("version", 4);
        if (version != 2 && version != 3) {
            throw damaged("version", "is %d, must be 2 or 3, little-endian".formatted(version));
        }
        long tensorCount = count("tensor_count", 24, MAX_TENSORS);
        long pairs = count("metadata_kv_count", 13, MAX_PAIRS);
        for (long i = 0; i < pairs; i++) {
            String key = name("metadata_kv[" + i + "]");
            Value value = skipValue(key, kind(key), 0);
            if (values.put(key, value) != null) {
                throw damaged(key, "is there twice");
            }
        }
        for (long i = 0; i < tensorCount; i++) {
            readTensor("tensor_info[" + i + "]");
        }
        placeTensors();
    }

    private void readTensor(String place) {
        String name = name(place);
        long dimensions = whole(name, 4);
        if (dimensions < 1 || dimensions > DIMENSIONS) {
            throw damaged(name, "has %d dimensions, must have 1 to %d".formatted(dimensions, DIMENSIONS));
        }
        List<Long> shape = LongStream.range(0, dimensions)
                .mapToObj(_ -> whole(name, 8))
                .toList()
                .reversed();
        long id = whole(name, 4);
        GgufType type = GgufType.of(id)
                .orElseThrow(() -> damaged(
                        name,
                        "has the type %d, which is not supported; supported: %s".formatted(id, GgufType.supported())));
        long offset = whole(name, 8);
        long columns = shape.getLast();
        if (columns % type.blockElements() != 0) {
            throw damaged(
                    name,
                    "has rows of %d elements, %s has blocks of %d".formatted(columns, type, type.blockElements()));
        }
        long bytes = columns;
        try {
            for (long size : shape) {
                if (size < 1) {
                    throw damaged(name, "has the shape " + shape + ", must have sizes of at least 1");
                }
            }
            bytes = type.rowBytes(columns);
            for (long size : shape.subList(0, shape.size() - 1)) {
                bytes = Math.multiplyExact(bytes, size);
            }
        } catch (ArithmeticException e) {
            throw new ConfigException(path + ": " + name, "has the shape " + shape + ", which no file can hold", e);
        }
        if (tensors.put(name, new Tensor(type, shape, offset, bytes)) != null) {
            throw damaged(name, "is there twice");
        }
    }

    /** Turns the tensors' offsets into places in the file. */
    private void placeTensors() {
        long alignment = integer("general.alignment").orElse(32);
        if (alignment < 1 || Long.bitCount(alignment) != 1) {
            throw damaged("general.alignment", "is " + alignment + ", must be a power of two");
        }
        long dataStart = Math.ceilDiv(at, alignment) * alignment;
        tensors.replaceAll((name, tensor) -> {
            long offset = tensor.start;
            if (offset < 0 || offset % alignment != 0) {
                throw damaged(
                        name,
                        "has the offset %s, must be a multiple of general.alignment, which is %d"
                                .formatted(Long.toUnsignedString(offset), alignment));
            }
            long room = file.byteSize() - dataStart;
            if (tensor.bytes > room || offset > room - tensor.bytes) {
                throw damaged(
                        name,
                        "has %d bytes at offset %d of the data, which begins at %d: beyond the file's %d bytes"
                                .formatted(tensor.bytes, offset, dataStart, file.byteSize()));
            }
            return new Tensor(tensor.type, tensor.shape, dataStart + offset, tensor.bytes);
        });
        String before = "";
        long end = dataStart;
        for (Map.Entry<String, Tensor> each : tensors.entrySet().stream()
                .sorted(Comparator.comparingLong(entry -> entry.getValue().start))
                .toList()) {
            Tensor tensor = each.getValue();
            if (tensor.start < end) {
                throw damaged(each.getKey(), "overlaps the tensor '" + before + "'");
            }
            before = each.getKey();
            end = tensor.start + tensor.bytes;
        }
    }

    private Value skipValue(String key, Kind kind, int depth) {
        if (kind == Kind.ARRAY) {
            return skipArray(key, depth);
        }
        Value value = new Value(kind, false, 1, at);
        skip(key, kind, 1);
        return value;
    }

    private Value skipArray(String key, int depth) {
        if (depth == NESTED_ARRAYS) {
            throw damaged(key, "has arrays in arrays, more than " + NESTED_ARRAYS + " deep");
        }
        Kind kind = kind(key);
        long count = count(key, kind == Kind.ARRAY ? 12 : kind == Kind.STRING ? 8 : kind.bytes, Long.MAX_VALUE);
        Value value = new Value(kind, true, count, at);
        if (kind == Kind.ARRAY) {
            for (long i = 0; i < count; i++) {
                skipArray(key, depth + 1);
            }
        } else {
            skip(key, kind, count);
        }
        return value;
    }

    private void skip(String key, Kind kind, long count) {
        if (kind != Kind.STRING) {
            take(key, count * kind.bytes);
            return;
        }
        for (long i = 0; i < count; i++) {
            take(key, count(key, 1, Long.MAX_VALUE));
        }
    }

    private Kind kind(String key) {
        long id = whole(key, 4);
        if (id >= Kind.values().length) {
            throw damaged(key, "has a value of type %d, must be from 0 to 12".formatted(id));
        }
        return Kind.values()[(int) id];
    }

    private String name(String place) {
        long start = at;
        long length = count(place, 1, MAX_NAME_BYTES);
        take(place, length);
        return text(start, place);
    }

    /**
     * A number of things that follow.
     *
     * @param bytes that each of them has at least
     */
    private long count(String name, int bytes, long most) {
        long place = at;
        long count = whole(name, 8);
        long fit = (file.byteSize() - at) / bytes;
        if (count < 0 || count > Math.min(most, fit)) {
            throw damaged(
                    name,
                    "has the length %s at byte %d, must be at most %d"
                            .formatted(Long.toUnsignedString(count), place, Math.min(most, fit)));
        }
        return count;
    }

    private long whole(String name, int bytes) {
        long place = take(name, bytes);
        return bytes == 4 ? file.get(INT, place) & 0xffffffffL : file.get(LONG, place);
    }

    /** The place of the next bytes, which are in the file. */
    private long take(String name, long bytes) {
        long place = at;
        if (bytes > Math.min(file.byteSize(), MAX_HEADER_BYTES) - place) {
            throw damaged(
                    name,
                    "%d bytes from byte %d are beyond the %s"
                            .formatted(
                                    bytes,
                                    place,
                                    file.byteSize() <= MAX_HEADER_BYTES
                                            ? "file's " + file.byteSize()
                                            : MAX_HEADER_BYTES + " that a header may have"));
        }
        at += bytes;
        return place;
    }
}
