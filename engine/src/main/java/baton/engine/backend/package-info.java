/** The door to the devices that compute models. */
@NullMarked
package baton.engine.backend;

import org.jspecify.annotations.NullMarked;
