/** Models on a device: weights, the layers' launches, the pool of KV blocks and its copies. */
@NullMarked
package baton.cuda.model;

import org.jspecify.annotations.NullMarked;
