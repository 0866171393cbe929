package baton.cuda.model;

/**
 * A norm with weights in a device's memory, in fp32.
 *
 * @param bias of a norm that subtracts the mean; 0: it does not
 */
record DeviceNorm(long weights, long bias, double eps) {}
