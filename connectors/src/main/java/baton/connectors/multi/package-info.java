/** The connector that is made of other connectors: vLLM's {@code MultiConnector}, hardened against failures of its children. */
@NullMarked
package baton.connectors.multi;

import org.jspecify.annotations.NullMarked;
