/** The instances behind the router: health, registration, and single requests to one of them. */
@NullMarked
package baton.router.upstream;

import org.jspecify.annotations.NullMarked;
