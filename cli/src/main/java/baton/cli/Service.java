package baton.cli;

import java.io.IOException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** Keeps a server's process running until it is told to stop. */
final class Service {
    /** How the line begins that says where a server listens; starters of processes wait for it. */
    static final String READY = "Ready at ";

    private static final long STOP_SECONDS = 30;

    private Service() {}

    /**
     * Prints where the server listens and returns once the process is to end: on a signal, or with its parent.
     *
     * @param exitWithParent whether the end of standard input ends the process
     * @param stop closes the server; runs once
     */
    static int run(String name, String host, int port, boolean exitWithParent, Runnable stop)
            throws InterruptedException {
        CountDownLatch end = new CountDownLatch(1);
        CountDownLatch stopped = new CountDownLatch(1);
        Runtime.getRuntime()
                .addShutdownHook(Thread.ofPlatform().name("shutdown").unstarted(() -> {
                    end.countDown();
                    try {
                        if (!stopped.await(STOP_SECONDS, TimeUnit.SECONDS)) {
                            System.err.println(name + ": did not stop within " + STOP_SECONDS + " s");
                        }
                    } catch (InterruptedException e) {
                        Thread.currentThread().interrupt();
                    }
                }));
        if (exitWithParent) {
            Thread.ofPlatform().daemon().name("parent-watch").start(() -> {
                try {
                    while (System.in.read() >= 0) {
                        // Only the end matters.
                    }
                } catch (IOException e) {
                    // Counts as the end.
                }
                end.countDown();
            });
        }
        System.out.println(READY + "http://" + reachable(host) + ":" + port);
        System.out.flush();
        end.await();
        try {
            stop.run();
        } finally {
            stopped.countDown();
        }
        return 0;
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
