/** What connectors need of the machine. Each connector is a package below this one. */
@NullMarked
package baton.connectors;

import org.jspecify.annotations.NullMarked;
