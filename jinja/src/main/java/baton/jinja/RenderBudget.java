package baton.jinja;

/**
 * One rendering's position in the template and its remaining budget. A template is a program that came with a model's files, so
 * everything that costs time or memory is charged here: nodes, elements looked at, characters produced.
 */
final class RenderBudget {
    static final int CHARACTERS_PER_STEP = 16;
    private static final int MAX_DEPTH = 400;

    private static final int STEPS_PER_LOOK = 1 << 14;

    private final long maxSteps;
    private final int maxCharacters;
    private final Runnable watch;
    private long nextLook = STEPS_PER_LOOK;
    private long steps;
    private int depth;
    private int line = 1;

    /**
     * @param maxCharacters of any one text, the output included
     * @param watch run now and then; its exception ends the rendering
     */
    RenderBudget(long maxSteps, int maxCharacters, Runnable watch) {
        this.maxSteps = maxSteps;
        this.maxCharacters = maxCharacters;
        this.watch = watch;
    }

    void at(int newLine) {
        line = newLine;
    }

    int line() {
        return line;
    }

    /** An error at the present line. */
    JinjaException error(String problem) {
        return new JinjaException(line, problem);
    }

    /** The error of using a value that is not there, or else {@code problem}. */
    JinjaException error(Value culprit, String problem) {
        return error(culprit instanceof Value.Undefined(String reason) ? reason : problem);
    }

    void charge(long amount) {
        steps += amount;
        if (steps > maxSteps) {
            throw error("rendering takes more than " + maxSteps + " steps");
        }
        if (steps >= nextLook) {
            nextLook = steps + STEPS_PER_LOOK;
            watch.run();
        }
    }

    void limitText(long length) {
        if (length > maxCharacters) {
            throw error("a text of " + length + " characters is over the limit of " + maxCharacters);
        }
    }

    /** Charges for a text of this length before it is made. */
    void chargeText(long length) {
        limitText(length);
        charge(1 + length / CHARACTERS_PER_STEP);
    }

    String text(String made) {
        chargeText(made.length());
        return made;
    }

    void enter() {
        charge(1);
        if (++depth > MAX_DEPTH) {
            throw error("nested deeper than " + MAX_DEPTH + " levels");
        }
    }

    void leave() {
        depth--;
    }
}
