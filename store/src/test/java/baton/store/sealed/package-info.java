@NullMarked
package baton.store.sealed;

import org.jspecify.annotations.NullMarked;
