/** KV blocks kept by key: the contract of every block store, whatever medium it keeps them in. */
@NullMarked
package baton.store;

import org.jspecify.annotations.NullMarked;
