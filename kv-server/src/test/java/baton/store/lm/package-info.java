@NullMarked
package baton.store.lm;

import org.jspecify.annotations.NullMarked;
