/**
 * The transfer agent that needs nothing but the JDK: one copy between processes of a host, TCP between hosts.
 */
@NullMarked
package baton.transfer.embedded;

import org.jspecify.annotations.NullMarked;
