package baton.kv.staging;

import baton.kv.connector.ConnectorMetadata;
import java.util.List;

/**
 * The copies of a step.
 *
 * @param inner the metadata of the connector inside
 * @param loads with blocks allocated since the last step
 * @param written blocks of each group of layers that the step's forward pass writes to
 */
record StagedMetadata(ConnectorMetadata inner, List<Load> loads, List<int[]> written) implements ConnectorMetadata {
    /**
     * A load by the connector inside.
     *
     * @param blocks of each group of layers
     * @param withinStep it is over when the step's layers have been waited for; else when it is reported as received
     */
    record Load(String requestId, List<int[]> blocks, boolean withinStep) {}
}
