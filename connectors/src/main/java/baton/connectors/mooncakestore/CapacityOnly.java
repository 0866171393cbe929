package baton.connectors.mooncakestore;

import baton.kv.KvCache;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import java.io.Closeable;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Set;

/** Both sides of an instance that gives the store memory and uses nothing of it. */
final class CapacityOnly {
    private record Nothing() implements ConnectorMetadata {}

    private CapacityOnly() {}

    /** @param memory taken back from the store when the scheduler closes */
    record Scheduler(Closeable memory) implements SchedulerConnector {
        @Override
        public KvMatch match(KvRequest request, int computedTokens) {
            return new KvMatch.None();
        }

        @Override
        public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {}

        @Override
        public ConnectorMetadata buildMetadata(ScheduledStep step) {
            return new Nothing();
        }

        @Override
        public void close() {
            try {
                memory.close();
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
    }

    record Worker() implements WorkerConnector {
        @Override
        public void register(KvCache cache) {}

        @Override
        public void startLoad(ConnectorMetadata metadata) {}

        @Override
        public WorkerReport report(Set<String> finished) {
            return WorkerReport.NOTHING;
        }

        @Override
        public void close() {}
    }
}
