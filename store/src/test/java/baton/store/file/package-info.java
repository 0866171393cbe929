@NullMarked
package baton.store.file;

import org.jspecify.annotations.NullMarked;
