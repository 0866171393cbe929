/** Bodies of requests and answers: JSON objects edited as text, server-sent events, the memory that bodies may take. */
@NullMarked
package baton.router.body;

import org.jspecify.annotations.NullMarked;
