package baton.connectors.onesided;

/** A connector's form of {@link PeerNotification}s. */
public interface NotificationCodec {
    byte[] encode(PeerNotification notification);

    /**
     * Reads a peer's notification.
     *
     * @throws baton.kv.InvalidFieldException if it is none, or a field is out of its bounds; names the field
     */
    PeerNotification read(byte[] message);
}
