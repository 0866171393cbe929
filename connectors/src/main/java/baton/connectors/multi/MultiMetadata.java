package baton.connectors.multi;

import baton.kv.connector.ConnectorMetadata;
import java.util.BitSet;
import java.util.List;
import java.util.Set;

/**
 * The work of a step.
 *
 * @param children the children's own, by their order
 * @param off children that are switched off: a worker closes them before it does anything else
 * @param loads that begin with this step
 * @param released finished requests: no child needs their blocks any more
 */
record MultiMetadata(List<ConnectorMetadata> children, BitSet off, List<Load> loads, Set<String> released)
        implements ConnectorMetadata {
    /**
     * A child loads a request.
     *
     * @param child its index
     * @param blocks that it fills
     * @param withinStep the child loads within steps, so it is over with this one
     */
    record Load(int child, String requestId, Set<Integer> blocks, boolean withinStep) {}
}
