/**
 * A router in front of prefill and decode instances: OpenAI's API on one side, legs to instances on the other.
 *
 * <h2>A request</h2>
 * A {@code ProxiedRequest} has its body read, its instances chosen, and one {@code HandoffAttempt} after the other until one has sent the first byte of an
 * answer:
 *
 * <pre>
 *            instances are chosen                        another attempt: other prefill instance (once),
 *                     |                                  the decode instance alone, other decode instances
 *                     v                                                    ^
 *   +-------------------------------------------+                          |
 *   | hand-over        PLANNING                 |        a leg fails before the first byte
 *   |      after prefill |        | at once     |                          |
 *   |                    v        |             |                          |
 *   |              PREFILLING     |             | -------------------------+
 *   |       prefill's    |        |             |
 *   |       answer       v        v             |  decode alone
 *   |                   DECODING  (and, at once,| <--------------- instances are chosen
 *   |                    |       PREFILLING)    |
 *   +--------------------|----------------------+
 *                        | first byte
 *                        v
 *                    ANSWERING --- the decode leg ends, or breaks off ---> over
 * </pre>
 *
 * An answer that breaks off with its token ids known goes on by one more attempt at another decode instance ({@code StreamContinuation}); a whole answer that no
 * instance continues begins anew, by a choice of instances. From a failed leg to the next byte of an answer a request is in a {@code RequestPause}: while no instance is left for it, it waits, and then its instances are chosen anew.
 *
 * In each state the end of the request (its client leaves, a 4xx of prefill, no instance is left) closes all legs.
 */
@NullMarked
package baton.router;

import org.jspecify.annotations.NullMarked;
