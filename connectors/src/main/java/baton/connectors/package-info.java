/** The machine's services for connectors. Each connector is a package below this one. */
@NullMarked
package baton.connectors;

import org.jspecify.annotations.NullMarked;
