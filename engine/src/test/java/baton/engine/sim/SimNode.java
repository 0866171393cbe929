package baton.engine.sim;

import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.kv.connector.KvConnector;
import baton.testkit.SimNetwork.Endpoint;
import java.lang.foreign.Arena;
import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * Where a connector of the simulation lives: one life of one instance.
 *
 * @param endpoint on the network; its memory is the instance's KV pool
 */
record SimNode(Endpoint endpoint, Ticker ticker) {
    /** Names of a prefill and a decode instance. */
    record Pair(String prefill, String decode) {}

    /** Makes the connectors of a world, one for each life of each instance. */
    interface SimConnectors {
        KvConnector connect(SimNode node);

        /** The connector's settings at an instance. */
        default Map<String, Object> settings(String instance) {
            return Map.of();
        }

        /** An answer's {@code kv_transfer_params} as they arrive at the next instance. */
        default Optional<JsonFields> passOn(Optional<JsonFields> params) {
            return params;
        }

        /** Faults that the connectors itself has injected so far, by kind. */
        default Map<String, Long> injected() {
            return Map.of();
        }

        /** Whether a part of the instance's connector has thrown, as it was meant to, in its present life. */
        default boolean hasThrown(String instance) {
            return false;
        }

        /**
         * Ends the faults.
         *
         * @return pairs with connections that have broken before; they hand requests over to each other all the same
         */
        default Set<Pair> calm() {
            return Set.of();
        }

        /** The common id of both legs of a request, if they need one from the start. */
        default Optional<String> pairId(String prefill, String decode, int number) {
            return Optional.empty();
        }

        /** The parameters of a decode request that is sent before the prefill instance has answered. */
        default Optional<JsonFields> atOnce(String prefill) {
            return Optional.empty();
        }

        /** Whether each instance can hand over to each other one, and a decode instance takes over the beginning of a prompt. */
        default boolean isSymmetric() {
            return false;
        }

        /** Whether they take blocks of several groups of layers. */
        default boolean takesGroups() {
            return false;
        }

        /** Runs before each step of an instance. */
        default void poll(SimNode node) {}

        /** For an instance's pool. */
        default Arena arena() {
            return Arena.ofConfined();
        }

        /** {@code kv_port} of an instance; 0 for none. */
        default int port(String instance) {
            return 0;
        }

        /** Once it has begun, no transfer holds blocks for longer than this. */
        Duration longestTransfer();

        /** Within this time the blocks of a finished prompt are back if no decode request can ever name them; empty if that is not told. */
        default Optional<Duration> longestWithoutReader() {
            return Optional.empty();
        }

        /** After the world's end. */
        default void close() {}
    }

    String name() {
        return endpoint.name();
    }

    long epoch() {
        return endpoint.epoch();
    }
}
