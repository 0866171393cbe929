package baton.engine;

/**
 * A call of the connector that has not returned.
 *
 * @param method of {@code SchedulerConnector} or {@code WorkerConnector}
 * @param thread that the engine has lent to it
 * @param seconds since it was called
 */
public record ConnectorCall(String method, Thread thread, double seconds) {}
