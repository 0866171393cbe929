@NullMarked
package baton.store.remote;

import org.jspecify.annotations.NullMarked;
