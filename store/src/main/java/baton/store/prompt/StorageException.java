package baton.store.prompt;

import baton.kv.safetensors.SafetensorsException;
import java.io.IOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.NoSuchFileException;
import java.util.Locale;

/** An entry that could not be read or written. The message names the file or directory. */
public final class StorageException extends IOException {
    private final Fault fault;

    StorageException(Fault fault, String message) {
        super(message);
        this.fault = fault;
    }

    StorageException(String message, IOException cause) {
        super(message + ": " + describe(cause), cause);
        this.fault = Fault.of(cause);
    }

    public Fault fault() {
        return fault;
    }

    /** The JDK's file errors often have no more than the file's name for a message. */
    public static String describe(IOException cause) {
        return cause instanceof SafetensorsException || cause instanceof StorageException
                ? String.valueOf(cause.getMessage())
                : cause.getClass().getSimpleName() + ": " + cause.getMessage();
    }

    /** The kind of the fault, a metric's label. */
    public enum Fault {
        /** A file or directory is not there. */
        MISSING,
        /** A file is truncated, or no file of an entry. */
        DAMAGED,
        /** The data's checksum is not the recorded one. */
        DIGEST,
        /** Well formed, but of another model, element type or layout. */
        INCOMPATIBLE,
        /** Without the fields that describe its layout and name its model. */
        FOREIGN,
        /** The device or a quota is full. */
        NO_SPACE,
        /** No permission, or a file system that is read-only. */
        DENIED,
        /** Anything else that the operating system reports. */
        IO;

        /** The value of a metric's label. */
        public String label() {
            return name().toLowerCase(Locale.ROOT);
        }

        /** The fault that an exception of file operations stands for. */
        public static Fault of(IOException cause) {
            // The JDK has no exception types for these; the texts are those of strerror(3).
            String text = String.valueOf(cause.getMessage());
            return switch (cause) {
                case StorageException storage -> storage.fault;
                case SafetensorsException _ -> DAMAGED;
                case NoSuchFileException _ -> MISSING;
                case AccessDeniedException _ -> DENIED;
                case IOException _ when text.contains("No space left") || text.contains("quota") -> NO_SPACE;
                case IOException _
                when text.contains("Read-only file system") || text.contains("not permitted") -> DENIED;
                default -> IO;
            };
        }
    }
}
