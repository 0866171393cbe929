package baton.kv;

/**
 * A device with memory of its own.
 *
 * @param kind as PyTorch names it, e.g. {@code cuda}
 * @param number of the device among those of its kind
 */
public record KvDevice(String kind, int number) {
    public KvDevice {
        if (kind.isEmpty() || number < 0) {
            throw new IllegalArgumentException("kind=%s, number=%d: a device is e.g. cuda:0".formatted(kind, number));
        }
    }

    @Override
    public String toString() {
        return kind + ":" + number;
    }
}
