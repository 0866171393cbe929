/** How the prefill and the decode leg of a request are tied together, one flow per kind of connector. */
@NullMarked
package baton.router.flow;

import org.jspecify.annotations.NullMarked;
