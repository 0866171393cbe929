/** Tests of models against recorded answers and against a plain forward pass in Java. */
@NullMarked
package baton.engine.model;

import org.jspecify.annotations.NullMarked;
