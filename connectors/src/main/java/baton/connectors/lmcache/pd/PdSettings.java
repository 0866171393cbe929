package baton.connectors.lmcache.pd;

import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import java.time.Duration;
import java.util.Optional;

/**
 * Of LMCache's prefill/decode mode.
 *
 * @param role {@code pd_role}
 * @param host where this instance's memory is read: {@code pd_peer_host} of a receiver, {@code kv_ip} of a sender
 * @param port {@code pd_peer_init_port} of a receiver
 * @param receiver {@code pd_peer_host} and {@code pd_peer_init_port} of a sender: the receiver of requests that name none
 * @param bufferBytes {@code pd_buffer_size}
 * @param longestWait {@code blocking_timeout_secs}: the longest that a request waits for announced blocks
 * @param leastLoad {@code min_retrieve_tokens}
 * @param access which peers may connect, and be connected to
 */
public record PdSettings(
        Role role,
        String host,
        int port,
        Optional<PeerAddress> receiver,
        long bufferBytes,
        Duration longestWait,
        int leastLoad,
        PeerAccess access) {
    /** The limit for a connection and its first question. */
    static final Duration CONNECT = Duration.ofSeconds(5);

    /** The limit for a message that has no answer. */
    static final Duration TELL = Duration.ofSeconds(30);

    private static final Duration LONGEST_READ = Duration.ofSeconds(15);

    /** The part of a prompt's hand-over that an instance has. */
    public enum Role {
        SENDER,
        RECEIVER
    }

    /** The limit for reading one batch of blocks: requests do not wait longer for them. */
    Duration readTimeout() {
        return longestWait.compareTo(LONGEST_READ) < 0 ? longestWait : LONGEST_READ;
    }

    /** The limit for the answer to one batch of blocks. */
    Duration answerTimeout() {
        return readTimeout().multipliedBy(2);
    }
}
