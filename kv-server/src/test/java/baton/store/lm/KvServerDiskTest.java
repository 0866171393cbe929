package baton.store.lm;

import static baton.store.remote.StoredValues.until;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kvserver.KvServer;
import baton.kvserver.KvServerSettings;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.SimpleFileVisitor;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class KvServerDiskTest {
    private static final int VALUE = 300_000;
    private static final int VALUES = 40;

    @TempDir
    private Path directory;

    private KvServer start(long diskBytes) throws IOException {
        return KvServer.start(
                KvServerSettings.of(0, 4 << 20).withDisk(Optional.of(new KvServerSettings.Disk(directory, diskBytes))));
    }

    private static byte[] value(int number) {
        byte[] value = new byte[VALUE + number];
        new Random(number).nextBytes(value);
        return value;
    }

    private static void putAll(RawLm client) throws IOException {
        for (int i = 0; i < VALUES; i++) {
            client.put("k" + i, value(i));
            assertThat(client.exists("k" + i)).isTrue();
        }
    }

    private List<Path> files() throws IOException {
        List<Path> files = new ArrayList<>();
        Files.walkFileTree(directory, new SimpleFileVisitor<>() {
            @Override
            public FileVisitResult visitFile(Path file, BasicFileAttributes attributes) {
                if (file.toString().endsWith(".kv")) {
                    files.add(file);
                }
                return FileVisitResult.CONTINUE;
            }

            @Override
            public FileVisitResult visitFileFailed(Path file, IOException e) {
                // The server has renamed or removed it.
                return FileVisitResult.CONTINUE;
            }
        });
        return files;
    }

    @Test
    void valuesThatMemoryHasNoRoomForComeBackFromFiles() throws Exception {
        try (KvServer server = start(1 << 30);
                RawLm client = new RawLm(server.port())) {
            putAll(client);
            for (int i = 0; i < VALUES; i++) {
                assertThat(client.exists("k" + i)).isTrue();
                assertThat(client.get("k" + i)).as("k" + i).isEqualTo(value(i));
            }
            assertThat(server.metrics()).contains("baton:kv_server_values 40\n").contains("to=\"nowhere\"} 0\n");
        }
    }

    @Test
    void repliesKeepTheirOrderWhileAValueIsReadFromItsFile() throws Exception {
        try (KvServer server = start(1 << 30);
                RawLm client = new RawLm(server.port())) {
            putAll(client);
            client.send(
                    RawLm.request(LmWire.GET, "k0"),
                    RawLm.request(LmWire.EXIST, "none"),
                    RawLm.request(LmWire.GET, "k39"),
                    RawLm.request(LmWire.GET, "k1"));
            assertThat(client.bytes(client.reply()[1])).isEqualTo(value(0));
            assertThat(client.reply()[0]).isEqualTo(400);
            assertThat(client.bytes(client.reply()[1])).isEqualTo(value(39));
            assertThat(client.bytes(client.reply()[1])).isEqualTo(value(1));
        }
    }

    @Test
    void filesAreFoundAgainByTheNextServerUnlessTheyAreDamaged() throws Exception {
        try (KvServer server = start(1 << 30);
                RawLm client = new RawLm(server.port())) {
            putAll(client);
        }
        List<Path> files = files();
        assertThat(files).hasSizeGreaterThan(20);
        try (RandomAccessFile file = new RandomAccessFile(files.get(0).toFile(), "rw")) {
            file.setLength(1000);
        }
        try (RandomAccessFile file = new RandomAccessFile(files.get(1).toFile(), "rw")) {
            file.seek(5000);
            int old = file.read();
            file.seek(5000);
            file.write(old ^ 1);
        }
        Path temporary = files.get(2).resolveSibling("0000000000000fff.kv.tmp");
        Files.write(temporary, new byte[10]);
        try (KvServer server = start(1 << 30);
                RawLm client = new RawLm(server.port())) {
            assertThat(temporary).doesNotExist();
            int there = 0;
            for (int i = 0; i < VALUES; i++) {
                byte[] got = client.get("k" + i);
                if (got.length > 0) {
                    assertThat(got).isEqualTo(value(i));
                    there++;
                }
            }
            assertThat(there).isEqualTo(files.size() - 2);
            assertThat(server.metrics()).contains("result=\"corrupt\"} 1\n");
        }
    }

    @Test
    void filesHaveABoundAndTheOldestGo() throws Exception {
        long bound = 6L * VALUE;
        try (KvServer server = start(bound);
                RawLm client = new RawLm(server.port())) {
            putAll(client);
            until("files are written", () -> server.metrics().contains("baton:kv_server_disk_used_bytes 15"));
            until("old files are deleted", () -> {
                try {
                    return files().size() <= 6;
                } catch (IOException e) {
                    return false;
                }
            });
            assertThat(client.exists("k0")).isFalse();
            assertThat(client.get("k39")).isEqualTo(value(39));
        }
    }

    @Test
    void aValueThatIsReplacedIsNotReadFromItsOldFile() throws Exception {
        try (KvServer server = start(1 << 30);
                RawLm client = new RawLm(server.port())) {
            putAll(client);
            client.put("k0", new byte[] {5});
            for (int i = 20; i < VALUES; i++) {
                client.put("k" + i, value(i));
            }
            assertThat(client.get("k0")).containsExactly(5);
            assertThat(client.get("k1")).isEqualTo(value(1));
        }
    }

    @Test
    void aDirectoryBelongsToOneServer() throws Exception {
        try (KvServer server = start(1 << 30)) {
            assertThat(server.port()).isPositive();
            assertThatThrownBy(() -> start(1 << 30))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageContaining("another server uses");
        }
    }
}
