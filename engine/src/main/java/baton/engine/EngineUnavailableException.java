package baton.engine;

/** The engine cannot take a request now: it is stopping, has failed, or is full. */
public final class EngineUnavailableException extends RuntimeException {
    public EngineUnavailableException(String message) {
        super(message);
    }
}
