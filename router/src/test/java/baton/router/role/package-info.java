/** Tests of changes of roles. */
@NullMarked
package baton.router.role;

import org.jspecify.annotations.NullMarked;
