@NullMarked
package baton.store.mooncake;

import org.jspecify.annotations.NullMarked;
