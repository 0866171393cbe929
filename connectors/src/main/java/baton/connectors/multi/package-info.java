/** The connector that is made of other connectors: vLLM's {@code MultiConnector}, without what could end its engine. */
@NullMarked
package baton.connectors.multi;

import org.jspecify.annotations.NullMarked;
