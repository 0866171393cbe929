@NullMarked
package baton.transfer.zeromq;

import org.jspecify.annotations.NullMarked;
