/** Machine code: the processor's instructions, an assembler, and memory that code may be executed in. */
@NullMarked
package baton.memory;

import org.jspecify.annotations.NullMarked;
