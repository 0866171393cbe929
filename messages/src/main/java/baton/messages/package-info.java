/** Small control messages between instances, with bounds on all that a peer can make this process hold. */
@NullMarked
package baton.messages;

import org.jspecify.annotations.NullMarked;
