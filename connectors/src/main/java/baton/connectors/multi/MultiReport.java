package baton.connectors.multi;

import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.WorkerMetadata;
import baton.kv.connector.WorkerReport;
import java.util.BitSet;
import java.util.List;
import java.util.Optional;

/**
 * The reports of the children's workers of one rank in a step.
 *
 * @param children their own reports, by their order
 * @param failed children with a worker that has thrown something
 */
record MultiReport(List<WorkerReport> children, BitSet failed) implements WorkerMetadata {
    /** The handshake metadata of the children's workers of one rank, in their order. */
    record Handshake(List<Optional<HandshakeMetadata>> children) implements HandshakeMetadata {}
}
