/** The part of Jinja2 that chat templates use, exact in whitespace and in how Python prints values. */
@NullMarked
package baton.jinja;

import org.jspecify.annotations.NullMarked;
