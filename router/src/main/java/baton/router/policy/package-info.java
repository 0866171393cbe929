/** Which instances serve a request. */
@NullMarked
package baton.router.policy;

import org.jspecify.annotations.NullMarked;
