/** Tests of what tests use. */
@NullMarked
package baton.testkit;

import org.jspecify.annotations.NullMarked;
