@NullMarked
package baton.messages.events;

import org.jspecify.annotations.NullMarked;
