@NullMarked
package baton.store.redis;

import org.jspecify.annotations.NullMarked;
