@NullMarked
package baton.messages.zeromq;

import org.jspecify.annotations.NullMarked;
