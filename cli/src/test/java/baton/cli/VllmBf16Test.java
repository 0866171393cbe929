package baton.cli;

class VllmBf16Test extends VllmHalvesContract {
    VllmBf16Test() {
        super("bfloat16", 0);
    }
}
