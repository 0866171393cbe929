/** Tests of the fixtures of tests. */
@NullMarked
package baton.testkit;

import org.jspecify.annotations.NullMarked;
