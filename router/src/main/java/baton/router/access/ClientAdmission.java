package baton.router.access;

/** Whether a request may enter. */
public sealed interface ClientAdmission {
    /** The client may; the pass is to be released when the request ends. */
    record Admitted(ClientPass pass) implements ClientAdmission {}

    /** The client has no key, or an unknown one. */
    record Unknown(String reason) implements ClientAdmission {}

    /**
     * Its key's limit is reached.
     *
     * @param client the key's name
     * @param retryAfterSeconds at least 1
     */
    record Limited(String client, String reason, long retryAfterSeconds) implements ClientAdmission {}
}
