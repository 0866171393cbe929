@NullMarked
package baton.server.output;

import org.jspecify.annotations.NullMarked;
