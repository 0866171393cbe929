/** Which clients may use the router, and how much: keys and their limits. */
@NullMarked
package baton.router.access;

import org.jspecify.annotations.NullMarked;
