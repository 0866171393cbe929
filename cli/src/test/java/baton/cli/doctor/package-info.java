@NullMarked
package baton.cli.doctor;

import org.jspecify.annotations.NullMarked;
