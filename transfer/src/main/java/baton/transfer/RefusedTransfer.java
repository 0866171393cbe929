package baton.transfer;

/** A transfer that failed before it began. */
public record RefusedTransfer(Cause cause, String message) implements Transfer {
    @Override
    public State state() {
        return new State.Failed(cause, message);
    }

    @Override
    public void cancel() {
        // It is over.
    }
}
