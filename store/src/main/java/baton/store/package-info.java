/** KV blocks kept by key: what every block store does, whatever it keeps them in. */
@NullMarked
package baton.store;

import org.jspecify.annotations.NullMarked;
