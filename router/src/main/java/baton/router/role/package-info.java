/** Changes of instances between the roles of prefill and decode, while requests run. */
@NullMarked
package baton.router.role;

import org.jspecify.annotations.NullMarked;
