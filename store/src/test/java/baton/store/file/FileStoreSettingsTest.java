package baton.store.file;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Optional;
import java.util.OptionalLong;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class FileStoreSettingsTest {
    private static FileStoreSettings parse(String json) {
        return FileStoreSettings.of(JsonFields.parse("secondary_tiers[0]", json));
    }

    @Test
    void settingsOfAnFsTierAreRead() {
        assertThat(parse("{\"root_dir\": \"/mnt/kv\"}"))
                .isEqualTo(FileStoreSettings.of("secondary_tiers[0].root_dir", Path.of("/mnt/kv")));
        assertThat(parse("""
                        {"root_dir": "/mnt/kv", "n_read_threads": 8, "n_write_threads": 2, "io": "direct", "fsync": true,
                         "max_bytes": 1e12, "max_age_seconds": 3600}"""))
                .isEqualTo(new FileStoreSettings(
                        "secondary_tiers[0].root_dir",
                        Path.of("/mnt/kv"),
                        8,
                        2,
                        1024,
                        FileStoreSettings.IoMode.DIRECT,
                        true,
                        new FileStoreSettings.Limits(
                                OptionalLong.of(1_000_000_000_000L), Optional.of(Duration.ofHours(1)))));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "{}|root_dir|is missing",
                "{\"root_dir\": \"\"}|root_dir|must not be empty",
                "{\"root_dir\": \"/kv\", \"n_read_threads\": 0}|n_read_threads|is 0, must be at least 1",
                "{\"root_dir\": \"/kv\", \"n_write_threads\": 1000}|n_write_threads|is 1000, must be at most 256",
                "{\"root_dir\": \"/kv\", \"io\": \"mmap\"}|io|unsupported value 'mmap'; allowed: direct, buffered",
                "{\"root_dir\": \"/kv\", \"max_bytes\": -1}|max_bytes|is -1, must be positive",
                "{\"root_dir\": \"/kv\", \"max_age_seconds\": 0}|max_age_seconds|is 0, must be positive"
            })
    void settingsThatAreWrongAreNamed(String json, String field, String text) {
        assertThatThrownBy(() -> parse(json))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("secondary_tiers[0]." + field)
                .hasMessageContaining(text);
    }
}
