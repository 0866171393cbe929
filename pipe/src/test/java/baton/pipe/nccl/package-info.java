@NullMarked
package baton.pipe.nccl;

import org.jspecify.annotations.NullMarked;
