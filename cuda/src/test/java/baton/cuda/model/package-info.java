@NullMarked
package baton.cuda.model;

import org.jspecify.annotations.NullMarked;
