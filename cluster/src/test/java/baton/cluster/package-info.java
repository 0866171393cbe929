@NullMarked
package baton.cluster;

import org.jspecify.annotations.NullMarked;
