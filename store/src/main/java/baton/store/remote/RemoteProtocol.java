package baton.store.remote;

/**
 * The protocol of a server.
 *
 * @param <R> its requests
 */
@FunctionalInterface
public interface RemoteProtocol<R extends RemoteRequest> {
    /** Makes the handler of a channel that is about to be connected. */
    RemoteSession<R> session(RemoteConnection<R> connection);
}
