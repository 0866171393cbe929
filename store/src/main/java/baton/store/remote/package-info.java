/** The parts that stores at servers share: the header of a value, the causes of failures, the counters. */
@NullMarked
package baton.store.remote;

import org.jspecify.annotations.NullMarked;
