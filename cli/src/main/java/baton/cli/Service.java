package baton.cli;

import baton.cluster.ServerProcess;
import baton.transfer.nixl.NixlExit;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.lang.invoke.MethodHandleProxies;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;

/** Keeps a server's process running until a signal stops it. */
final class Service {
    /** Exit status that a shell reports for a process ended by SIGTERM. */
    private static final int ENDED_BY_SIGNAL = 143;

    private Service() {}

    /**
     * Prints where the server listens and returns once it is closed: after a signal, or with the process's parent. A second signal
     * ends the process at once.
     *
     * @param scheme of the URL that is printed
     * @param exitWithParent whether the end of standard input ends the process
     * @param drain lets the server finish its requests; called only after a signal, as a parent that has ended waits for nothing
     * @param stop closes the server; runs once
     */
    static int run(
            String name, String scheme, String host, int port, boolean exitWithParent, Runnable drain, Runnable stop)
            throws InterruptedException {
        CountDownLatch end = new CountDownLatch(1);
        AtomicBoolean signalled = new AtomicBoolean();
        for (String signal : List.of("TERM", "INT", "HUP")) {
            onSignal(signal, () -> {
                if (signalled.getAndSet(true)) {
                    // Past a log that waits to be written.
                    new PrintStream(new FileOutputStream(FileDescriptor.err), true, StandardCharsets.UTF_8)
                            .println(name + ": ended at once by a second signal");
                    try {
                        NixlExit.skipDestructors();
                    } finally {
                        Runtime.getRuntime().halt(ENDED_BY_SIGNAL);
                    }
                }
                end.countDown();
            });
        }
        if (exitWithParent) {
            Thread.ofPlatform().daemon().name("parent-watch").start(() -> {
                try {
                    while (System.in.read() >= 0) {
                        // Only the end counts.
                    }
                } catch (IOException e) {
                    // Counts as the end.
                }
                end.countDown();
            });
        }
        System.out.println(ServerProcess.READY + scheme + "://" + reachable(host) + ":" + port);
        System.out.flush();
        end.await();
        try {
            if (signalled.get()) {
                drain.run();
            }
        } finally {
            stop.run();
        }
        return 0;
    }

    /**
     * A shutdown hook would not do: the JVM lets no second signal through, and its exit status would say that it was killed. The
     * JDK's class for signals, of module jdk.unsupported, is called by reflection as the compiler's warning about its name
     * cannot be suppressed.
     */
    private static void onSignal(String name, Runnable handler) {
        try {
            Class<?> signal = Class.forName("sun.misc.Signal");
            Class<?> handlerType = Class.forName("sun.misc.SignalHandler");
            Object adapter = MethodHandleProxies.asInterfaceInstance(
                    handlerType,
                    MethodHandles.dropArguments(
                            MethodHandles.publicLookup()
                                    .findVirtual(Runnable.class, "run", MethodType.methodType(void.class))
                                    .bindTo(handler),
                            0,
                            signal));
            signal.getMethod("handle", signal, handlerType)
                    .invoke(null, signal.getConstructor(String.class).newInstance(name), adapter);
        } catch (ReflectiveOperationException e) {
            // Reserved by a JVM option (-Xrs) or unknown to this system: the signal keeps its default action.
            System.err.println("baton: SIG" + name + " cannot be handled: " + e.getCause());
        }
    }

    /** The host as a URL on this machine names it. */
    static String reachable(String host) {
        return switch (host) {
            case "0.0.0.0" -> "127.0.0.1";
            case "::" -> "[::1]";
            default -> host.indexOf(':') < 0 ? host : "[" + host + "]";
        };
    }
}
