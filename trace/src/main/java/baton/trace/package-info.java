/** Distributed traces: the W3C's trace context, spans, and their way to an OpenTelemetry collector. */
@NullMarked
package baton.trace;

import org.jspecify.annotations.NullMarked;
