package baton.transfer;

/**
 * One piece of a transfer.
 *
 * @param local address in this process
 * @param remote address in the peer's process
 * @param bytes its length; positive
 */
public record Range(long local, long remote, long bytes) {
    public Range {
        if (bytes <= 0) {
            throw new IllegalArgumentException("bytes=" + bytes + " must be positive");
        }
    }
}
