package baton.router.access;

/** Whether a request may enter. */
public sealed interface Admission {
    /** It may; the pass is to be released when the request ends. */
    record Admitted(ClientPass pass) implements Admission {}

    /** It has no key, or one that is not known. */
    record Unknown(String reason) implements Admission {}

    /**
     * Its key's limit is reached.
     *
     * @param client the key's name
     * @param retryAfterSeconds at least 1
     */
    record Limited(String client, String reason, long retryAfterSeconds) implements Admission {}
}
