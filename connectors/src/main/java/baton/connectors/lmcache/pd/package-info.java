/** LMCache's prefill/decode mode: a prefill instance's blocks in its host memory, read by the decode instance that they are for. */
@NullMarked
package baton.connectors.lmcache.pd;

import org.jspecify.annotations.NullMarked;
