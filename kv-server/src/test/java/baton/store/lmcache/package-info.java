@NullMarked
package baton.store.lmcache;

import org.jspecify.annotations.NullMarked;
