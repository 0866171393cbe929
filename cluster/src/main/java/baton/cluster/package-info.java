/** Processes of Baton on this host: starting, readiness, output and end of a process; clusters of them. */
@NullMarked
package baton.cluster;

import org.jspecify.annotations.NullMarked;
