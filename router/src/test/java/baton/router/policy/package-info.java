/** Tests of the choice of instances. */
@NullMarked
package baton.router.policy;

import org.jspecify.annotations.NullMarked;
