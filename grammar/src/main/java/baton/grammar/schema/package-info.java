/** JSON Schema, draft 2020-12, as grammars of JSON documents. */
@NullMarked
package baton.grammar.schema;

import org.jspecify.annotations.NullMarked;
