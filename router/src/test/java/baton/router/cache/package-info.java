@NullMarked
package baton.router.cache;

import org.jspecify.annotations.NullMarked;
