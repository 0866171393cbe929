package baton.cuda.driver;

/** The driver reported an error. */
public final class CudaException extends IllegalStateException {
    private final int code;

    /**
     * @param function of the driver
     * @param code of {@code CUresult}
     * @param name of the code, such as {@code CUDA_ERROR_OUT_OF_MEMORY}
     * @param detail the driver's text, or the compiler's log
     */
    public CudaException(String function, int code, String name, String detail) {
        super("%s failed with %s (%d): %s".formatted(function, name, code, detail));
        this.code = code;
    }

    public int code() {
        return code;
    }

    /** Whether the device has too little memory left. */
    public boolean isOutOfMemory() {
        return code == 2;
    }
}
