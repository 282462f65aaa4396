package dev.logkeep.bed;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;

import org.apache.kafka.server.log.remote.storage.LocalTieredStorage;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/**
 * Kafka's own remote store in a folder, whose reads are slow or fail on command. The command is a file of properties that is read at every
 * read: `delay.ms` is waited for first, and with `fail=true` the read fails then.
 */
public final class SlowTieredStorage implements RemoteStorageManager {
    private final LocalTieredStorage store = new LocalTieredStorage();
    private Path command;

    @Override
    public void configure(Map<String, ?> configs) {
        command = Path.of(configs.get("command").toString());
        store.configure(configs);
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata segment, LogSegmentData data) throws RemoteStorageException {
        return store.copyLogSegmentData(segment, data);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start) throws RemoteStorageException {
        obey();
        return store.fetchLogSegment(segment, start);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start, int end) throws RemoteStorageException {
        obey();
        return store.fetchLogSegment(segment, start, end);
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType type) throws RemoteStorageException {
        return store.fetchIndex(segment, type);
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) throws RemoteStorageException {
        store.deleteLogSegmentData(segment);
    }

    @Override
    public void close() {
        store.close();
    }

    private void obey() throws RemoteStorageException {
        Properties given = new Properties();
        try (InputStream file = Files.newInputStream(command)) {
            given.load(file);
        } catch (NoSuchFileException nothing) {
            return;
        } catch (IOException unreadable) {
            throw new RemoteStorageException(unreadable);
        }
        try {
            Thread.sleep(Long.parseLong(given.getProperty("delay.ms", "0")));
        } catch (InterruptedException cancelled) {
            Thread.currentThread().interrupt();
            throw new RemoteStorageException("the broker gave up this read");
        }
        if (Boolean.parseBoolean(given.getProperty("fail"))) {
            throw new RemoteStorageException("told to fail");
        }
    }
}
