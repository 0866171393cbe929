package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;

class ListeningPortsTest {
    @Test
    void countsListenersAndNotConnections() throws Exception {
        assumeTrue(Files.exists(Path.of("/proc/self/net/tcp")), "there is no /proc/self/net/tcp");
        long self = ProcessHandle.current().pid();
        int before = ListeningPorts.count(self).orElseThrow();
        try (ServerSocket one = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
                ServerSocket _ = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
                Socket _ = new Socket(InetAddress.getLoopbackAddress(), one.getLocalPort())) {
            assertThat(ListeningPorts.count(self)).hasValue(before + 2);
        }
        assertThat(ListeningPorts.count(Path.of("/proc/no-such-process"))).isEmpty();
    }
}
