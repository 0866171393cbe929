/** Tests of clients' keys and limits. */
@NullMarked
package baton.router.access;

import org.jspecify.annotations.NullMarked;
