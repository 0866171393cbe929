/** NVIDIA's driver, or a simulated one behind the same interface, and the objects that own its allocations. */
@NullMarked
package baton.cuda.driver;

import org.jspecify.annotations.NullMarked;
