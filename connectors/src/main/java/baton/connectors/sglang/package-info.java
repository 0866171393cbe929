/**
 * SGLang's prefill/decode disaggregation over its Mooncake back end: the prefill instance writes a prompt's pages and one row beside them
 * into the decode instance's memory (sglang/srt/disaggregation, 0.5.23).
 */
@NullMarked
package baton.connectors.sglang;

import org.jspecify.annotations.NullMarked;
