package baton.cuda.ptx;

import java.util.List;
import java.util.stream.Collectors;

/**
 * A kernel as text.
 *
 * @param threads of a block
 */
public record PtxKernel(String name, int threads, String text) {
    /** Dynamic shared memory of each kernel, as much as its launch says. */
    static final String DYNAMIC = "dynamic";

    private static final String HEADER = """
            .version 8.0
            .target sm_80
            .address_size 64
            .extern .shared .align 16 .b8 %s[];
            """.formatted(DYNAMIC);

    /** The text of a module of kernels. */
    public static String module(List<PtxKernel> kernels) {
        return kernels.stream().map(PtxKernel::text).collect(Collectors.joining("\n", HEADER, ""));
    }
}
