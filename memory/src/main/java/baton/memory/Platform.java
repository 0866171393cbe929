package baton.memory;

import java.util.Locale;

/**
 * The platform of a process. Code that depends on a platform has an alternative in plain Java for other platforms, and logs that it uses
 * the alternative.
 *
 * @param os {@code linux}, {@code macosx}, or another name of the JVM
 * @param arch {@code x86_64}, {@code arm64}, or another name of the JVM
 */
public record Platform(String os, String arch) {
    /** System property: another platform to behave as, such as {@code macosx-arm64}, so that its alternatives can be tried here. */
    public static final String PROPERTY = "baton.platform";

    /**
     * This process's platform.
     *
     * @throws IllegalArgumentException if {@value #PROPERTY} is set and names none
     */
    public static Platform current() {
        String other = System.getProperty(PROPERTY);
        return other == null ? of(System.getProperty("os.name"), System.getProperty("os.arch")) : parse(other);
    }

    /** The platform with the JVM's {@code os.name} and {@code os.arch}. */
    public static Platform of(String osName, String osArch) {
        String os = osName.toLowerCase(Locale.ROOT);
        return new Platform(
                os.startsWith("mac") ? "macosx" : os,
                switch (osArch) {
                    case "amd64" -> "x86_64";
                    case "aarch64" -> "arm64";
                    default -> osArch;
                });
    }

    static Platform parse(String text) {
        String[] parts = text.split("-", -1);
        if (parts.length != 2 || parts[0].isEmpty() || parts[1].isEmpty()) {
            throw new IllegalArgumentException(
                    PROPERTY + "=" + text + " must be an operating system and a processor, such as macosx-arm64");
        }
        return of(parts[0], parts[1]);
    }

    public boolean isLinux() {
        return os.equals("linux");
    }

    public boolean isMacOs() {
        return os.equals("macosx");
    }

    public boolean isX86() {
        return arch.equals("x86_64");
    }

    /** The platform's name in jars with native code. */
    @Override
    public String toString() {
        return os + "-" + arch;
    }
}
