/** Pictures of figures: inline SVG in pages that need nothing else, for light and dark. */
@NullMarked
package baton.bench.plot;

import org.jspecify.annotations.NullMarked;
