package baton.cuda.sim;

import baton.cuda.driver.Driver.LaunchShape;
import baton.cuda.driver.Gpu;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;

/** A simulated device with one stream, for tests that run kernels written as text. */
final class Bench implements AutoCloseable {
    private static final String HEADER = """
            .version 8.0
            .target sm_80
            .address_size 64
            .extern .shared .align 16 .b8 dynamic[];
            """;

    final SimulatedDriver driver = new SimulatedDriver();
    final Gpu gpu = new Gpu(driver, 0);
    final Gpu.Stream stream = gpu.stream();

    /** The text of a module of one kernel, {@code k}, with parameters {@code a}, {@code b}, {@code c} and {@code n}, and registers. */
    static String kernel(String body) {
        return HEADER + """
                .visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
                {
                .reg .pred %p<8>;
                .reg .b16 %h<8>;
                .reg .b32 %r<32>;
                .reg .f32 %f<16>;
                .reg .b64 %q<16>;
                .shared .align 16 .b8 fixed[256];
                ld.param.u64 %q0, [a];
                ld.param.u64 %q1, [b];
                ld.param.u64 %q2, [c];
                ld.param.u32 %r0, [n];
                mov.u32 %r1, %tid.x;
                """ + body + "\nret;\n}\n";
    }

    Gpu.Buffer buffer(int... words) {
        Gpu.Buffer buffer = gpu.allocate(Math.max(1, words.length) * 4L);
        if (words.length > 0) {
            write(buffer, words);
        }
        return buffer;
    }

    void write(Gpu.Buffer buffer, int... words) {
        try (Arena arena = Arena.ofConfined()) {
            stream.copyToDevice(buffer.address(), arena.allocateFrom(ValueLayout.JAVA_INT, words));
        }
    }

    int[] read(Gpu.Buffer buffer) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = arena.allocate(buffer.bytes(), Integer.BYTES);
            stream.copyToHost(host, buffer.address());
            return host.toArray(ValueLayout.JAVA_INT);
        }
    }

    void write(Gpu.Buffer buffer, long... values) {
        try (Arena arena = Arena.ofConfined()) {
            stream.copyToDevice(buffer.address(), arena.allocateFrom(ValueLayout.JAVA_LONG, values));
        }
    }

    long[] readLongs(Gpu.Buffer buffer) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment host = arena.allocate(buffer.bytes(), Long.BYTES);
            stream.copyToHost(host, buffer.address());
            return host.toArray(ValueLayout.JAVA_LONG);
        }
    }

    /** Launches the kernel of a text and waits for it. */
    void run(String text, LaunchShape shape, long... arguments) {
        try (Gpu.Module module = gpu.load(text)) {
            stream.launch(module.function("k"), shape, Arrays.copyOf(arguments, 4));
            stream.synchronize();
        }
    }

    @Override
    public void close() {
        stream.close();
        gpu.close();
    }
}
