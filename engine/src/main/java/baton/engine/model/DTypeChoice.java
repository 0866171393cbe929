package baton.engine.model;

import baton.engine.model.KernelChoice.Kind;
import baton.kv.ConfigException;
import baton.kv.DType;
import java.util.Optional;

/**
 * The type that a model is computed in, and why.
 *
 * @param dtype of weights that are not quantised, and of the KV cache unless another is configured
 * @param reason one line
 */
public record DTypeChoice(DType dtype, String reason) {
    /**
     * The configured type; else, of the types that hold the checkpoint's weights exactly, the one that is computed fastest on this
     * processor.
     *
     * @throws ConfigException if there are no kernels
     */
    public static DTypeChoice here(Optional<DType> configured, ModelConfig model, Quantization quantization) {
        return configured.map(dtype -> new DTypeChoice(dtype, "as configured")).orElseGet(() -> switch (model.dtype()) {
            case F32 -> new DTypeChoice(DType.F32, "the checkpoint's");
            case F8_E4M3 ->
                throw new IllegalArgumentException(
                        "nothing is computed in " + model.dtype().torchName());
            case F16 -> ofF16(kernelsOfF16(model, quantization));
            case BF16 ->
                ofBf16(KernelChoice.here(model, DType.BF16, quantization).kind());
        });
    }

    /** All kernels for float32 but LibTorch's compute float16 too. */
    private static Kind kernelsOfF16(ModelConfig model, Quantization quantization) {
        try {
            return KernelChoice.here(model, DType.F32, quantization).kind();
        } catch (ConfigException _) {
            // Its error names the type of the model.
            return KernelChoice.here(model, DType.F16, quantization).kind();
        }
    }

    /** @param kernels that compute in float32 */
    static DTypeChoice ofF16(Kind kernels) {
        return switch (kernels) {
            case AMX, AVX512_BF16, AVX512, AVX2 -> new DTypeChoice(DType.F16, "the checkpoint's");
            case LIBTORCH -> new DTypeChoice(DType.F32, "LibTorch's operators do not compute in float16 here");
        };
    }

    static DTypeChoice ofBf16(Kind kernels) {
        return switch (kernels) {
            case AMX, AVX512_BF16, AVX512, AVX2 -> new DTypeChoice(DType.BF16, "the checkpoint's");
            case LIBTORCH ->
                new DTypeChoice(
                        DType.F32, "LibTorch's operators are slow in the checkpoint's bfloat16 on this processor");
        };
    }

    /** The choice as text for logs. */
    public String describe() {
        return dtype.torchName() + " (" + reason + ")";
    }
}
