package baton.bench;

import baton.cluster.ChildProcess;
import baton.kv.FreePorts;
import baton.store.prompt.ScratchDirectory;
import java.io.File;
import java.io.IOException;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/** A proxy that is not Baton's, in a process of its own. */
final class ProxyProcess implements AutoCloseable {
    private final ScratchDirectory directory;
    private final ChildProcess process;
    private final int port;

    /** A proxy does not notice that this process has ended. */
    private final Thread onSignal = Thread.ofPlatform().unstarted(this::end);

    private ProxyProcess(ScratchDirectory directory, ChildProcess process, int port) {
        this.directory = directory;
        this.process = process;
        this.port = port;
    }

    /** The program {@code nginx} on this {@code PATH}, or where Debian has it. */
    static Optional<Path> findNginx(String path) {
        return RedisProgram.program(path + File.pathSeparator + "/usr/sbin", "nginx");
    }

    /** nginx as a reverse proxy of one server, with connections kept on both sides and answers passed on as they come. */
    static ProxyProcess nginx(Path program, int upstream, Duration deadline) throws IOException, InterruptedException {
        ScratchDirectory directory = ScratchDirectory.create();
        int port = FreePorts.inARow(1);
        Path file = directory.path().resolve("nginx.conf");
        Files.writeString(file, """
                daemon off;
                master_process off;
                pid %1$s/nginx.pid;
                error_log stderr error;
                events { worker_connections 8192; }
                http {
                  access_log off;
                  client_body_temp_path %1$s/body;
                  proxy_temp_path %1$s/proxy;
                  fastcgi_temp_path %1$s/fastcgi;
                  uwsgi_temp_path %1$s/uwsgi;
                  scgi_temp_path %1$s/scgi;
                  keepalive_requests 1000000;
                  upstream decode { server 127.0.0.1:%2$d; keepalive 64; }
                  server {
                    listen 127.0.0.1:%3$d;
                    location / {
                      proxy_pass http://decode;
                      proxy_http_version 1.1;
                      proxy_set_header Connection "";
                      proxy_buffering off;
                    }
                  }
                }
                """.formatted(directory.path(), upstream, port));
        List<String> command =
                List.of(program.toString(), "-p", directory.path().toString(), "-c", file.toString());
        return start("nginx", command, directory, port, deadline);
    }

    /** Starts a P/D proxy in front of these two instances. */
    static ProxyProcess of(ProxyCommand proxy, int prefillPort, int decodePort, Duration deadline)
            throws IOException, InterruptedException {
        int port = FreePorts.inARow(1);
        return start(
                proxy.name(),
                proxy.arguments(port, prefillPort, decodePort),
                ScratchDirectory.create(),
                port,
                deadline);
    }

    private static ProxyProcess start(
            String name, List<String> command, ScratchDirectory directory, int port, Duration deadline)
            throws IOException, InterruptedException {
        ChildProcess process;
        try {
            process = ChildProcess.start(name, command, directory.path().resolve("log"), new ChildProcess.Output() {
                @Override
                public void line(String line) {}

                @Override
                public void end() {}
            });
        } catch (IOException e) {
            directory.close();
            throw e;
        }
        ProxyProcess proxy = new ProxyProcess(directory, process, port);
        try {
            Runtime.getRuntime().addShutdownHook(proxy.onSignal);
            proxy.awaitListening(deadline);
        } catch (IOException | InterruptedException e) {
            proxy.close();
            throw e;
        }
        return proxy;
    }

    private void awaitListening(Duration deadline) throws IOException, InterruptedException {
        long end = System.nanoTime() + deadline.toNanos();
        while (true) {
            try (Socket _ = new Socket(InetAddress.getLoopbackAddress(), port)) {
                return;
            } catch (IOException e) {
                if (!process.isAlive() || System.nanoTime() - end >= 0) {
                    throw new IOException(process.describeExit(), e);
                }
                var _ = process.awaitExit(Duration.ofMillis(20)).isPresent();
            }
        }
    }

    int port() {
        return port;
    }

    long pid() {
        return process.pid();
    }

    @Override
    public void close() {
        try {
            Runtime.getRuntime().removeShutdownHook(onSignal);
        } catch (IllegalStateException e) {
            // This process is ending: the hook runs too.
        }
        end();
    }

    private void end() {
        process.kill();
        process.awaitEnd(Duration.ofSeconds(5));
        directory.close();
    }
}
