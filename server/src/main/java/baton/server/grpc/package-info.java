/** Messages of Protocol Buffers that gRPC carries: vLLM's {@code inference.proto} and {@code control.proto}. */
@NullMarked
package baton.server.grpc;

import org.jspecify.annotations.NullMarked;
