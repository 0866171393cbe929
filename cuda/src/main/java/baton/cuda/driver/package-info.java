/** NVIDIA's driver, or a simulated one behind the same interface, and the objects that own what it allocates. */
@NullMarked
package baton.cuda.driver;

import org.jspecify.annotations.NullMarked;
