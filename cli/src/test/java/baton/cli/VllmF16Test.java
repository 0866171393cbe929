package baton.cli;

class VllmF16Test extends VllmHalvesContract {
    /** The margin of two logits below 32, which are multiples of 2^-6: the last four roundings of each. */
    VllmF16Test() {
        super("float16", 0x1p-4);
    }
}
