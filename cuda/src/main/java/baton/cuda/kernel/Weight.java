package baton.cuda.kernel;

import baton.kv.DType;

/**
 * A weight in a device's memory: a row of inputs for each output, one after the other.
 *
 * @param bias address of a number in fp32 for each output; 0: none
 */
public record Weight(long address, DType type, int outputs, int inputs, long bias) {}
