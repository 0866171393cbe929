package baton.store.file;

import baton.store.prompt.StorageException;
import java.io.IOException;
import java.util.Locale;

/** The reason why a value was not read or written, a metric's label. */
public enum FileFault {
    /** There is no such file. */
    ABSENT,
    /** The file is shorter or longer than a value's. */
    TRUNCATED,
    /** The header or the value does not fit its checksum. */
    CORRUPT,
    /** The file is another key's. */
    OTHER_KEY,
    /** The file is of another format. */
    OTHER_FORMAT,
    /** Something else than a regular file is in its place: a directory, a link, a pipe. It stays. */
    FOREIGN,
    /** The device or a quota is full. */
    NO_SPACE,
    /** No permission, or a file system that is read-only. */
    DENIED,
    /** Anything else that the operating system reports. */
    IO,
    /** The deadline was over before the operation was. */
    TIMEOUT,
    /** Too many operations wait, or all threads hang, or the store is closed. */
    REJECTED,
    /** Nothing is written for a while because writing has failed. */
    PAUSED,
    /** A defect; it is logged. */
    INTERNAL;

    String label() {
        return name().toLowerCase(Locale.ROOT);
    }

    static FileFault of(IOException cause) {
        if (cause instanceof BadFileException bad) {
            return bad.fault();
        }
        return switch (StorageException.Fault.of(cause)) {
            case MISSING -> ABSENT;
            case DAMAGED, DIGEST -> CORRUPT;
            case INCOMPATIBLE -> OTHER_FORMAT;
            case FOREIGN -> FOREIGN;
            case NO_SPACE -> NO_SPACE;
            case DENIED -> DENIED;
            case IO -> IO;
        };
    }

    /** A file with the wrong content. */
    static final class BadFileException extends IOException {
        private final FileFault fault;

        BadFileException(FileFault fault, String message) {
            super(message);
            this.fault = fault;
        }

        FileFault fault() {
            return fault;
        }
    }
}
