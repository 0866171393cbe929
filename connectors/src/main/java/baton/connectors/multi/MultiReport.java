package baton.connectors.multi;

import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.WorkerMetadata;
import baton.kv.connector.WorkerReport;
import java.util.BitSet;
import java.util.List;
import java.util.Optional;

/**
 * What the children's workers of one rank have done in a step.
 *
 * @param children their own reports, by their order
 * @param failed children with a worker that has thrown something
 */
record MultiReport(List<WorkerReport> children, BitSet failed) implements WorkerMetadata {
    /** What the children's workers of one rank want peers to know, by their order. */
    record Handshake(List<Optional<HandshakeMetadata>> children) implements HandshakeMetadata {}
}
