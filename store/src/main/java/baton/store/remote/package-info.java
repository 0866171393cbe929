/** What stores at servers share: how a value begins, why operations fail, what is counted. */
@NullMarked
package baton.store.remote;

import org.jspecify.annotations.NullMarked;
