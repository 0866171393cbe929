package baton.cuda.ptx;

import baton.cuda.ptx.Operand.B16;
import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.Operand.Pred;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;

/**
 * A kernel that is being written: its parameters, registers and shared memory, and its control flow. Registers are as many as are asked for;
 * the driver's compiler allocates those of the device.
 */
public class PtxWriter {
    private final String name;
    private final int threads;
    private final List<String> parameters = new ArrayList<>();
    private final StringBuilder declarations = new StringBuilder();
    private final StringBuilder body = new StringBuilder();
    private int preds;
    private int halves;
    private int words;
    private int doubleWords;
    private int floats;
    private int labels;
    private int sharedBlocks;
    private String guard = "";

    /** @param threads of a block, a multiple of 32 */
    protected PtxWriter(String name, int threads) {
        this.name = name;
        this.threads = threads;
    }

    public int threads() {
        return threads;
    }

    /** The whole kernel. */
    public PtxKernel kernel() {
        StringBuilder text = new StringBuilder();
        text.append(".visible .entry ").append(name).append("(\n");
        text.append(String.join(",\n", parameters)).append("\n)\n");
        text.append(".maxntid ").append(threads).append(", 1, 1\n{\n");
        declare(text, ".pred", "%p", preds);
        declare(text, ".b16", "%h", halves);
        declare(text, ".b32", "%r", words);
        declare(text, ".b64", "%rd", doubleWords);
        declare(text, ".f32", "%f", floats);
        text.append(declarations).append(body).append("    ret;\n}\n");
        return new PtxKernel(name, threads, text.toString());
    }

    private static void declare(StringBuilder text, String type, String prefix, int count) {
        if (count > 0) {
            text.append("    .reg %s %s<%d>;%n".formatted(type, prefix, count));
        }
    }

    /** The next parameter, an address in global memory or another number of 64 bits. */
    public U64 parameterU64(String parameter) {
        return parameter(parameter, "u64", newU64());
    }

    public U32 parameterU32(String parameter) {
        return parameter(parameter, "u32", newU32());
    }

    public F32 parameterF32(String parameter) {
        return parameter(parameter, "f32", newF32());
    }

    private <V extends Operand> V parameter(String parameter, String type, V register) {
        parameters.add("    .param .%s %s".formatted(type, parameter));
        write("ld.param." + type, register.text(), "[" + parameter + "]");
        return register;
    }

    public Pred newPred() {
        return new Pred("%p" + preds++);
    }

    public B16 newB16() {
        return new B16("%h" + halves++);
    }

    public U32 newU32() {
        return new U32("%r" + words++);
    }

    public U64 newU64() {
        return new U64("%rd" + doubleWords++);
    }

    public F32 newF32() {
        return new F32("%f" + floats++);
    }

    /** Shared memory of the kernel, aligned to 16 bytes. */
    public U32 shared(int bytes) {
        String block = "shared" + sharedBlocks++;
        declarations.append("    .shared .align 16 .b8 %s[%d];%n".formatted(block, bytes));
        return sharedAddress(block);
    }

    /** The shared memory that a launch asks for, aligned to 16 bytes. */
    public U32 dynamicShared() {
        return sharedAddress(PtxKernel.DYNAMIC);
    }

    private U32 sharedAddress(String block) {
        U32 address = newU32();
        write("mov.u32", address.text(), block);
        return address;
    }

    /** An instruction, such as {@code add.u32}, of operands as PTX writes them. */
    public void write(String instruction, String... operands) {
        body.append("    ").append(guard).append(instruction);
        if (operands.length > 0) {
            body.append(' ').append(String.join(", ", operands));
        }
        body.append(";\n");
    }

    /** An instruction that writes its first operand. */
    protected <V extends Operand> V result(String instruction, V to, Operand... from) {
        String[] operands = new String[from.length + 1];
        operands[0] = to.text();
        for (int i = 0; i < from.length; i++) {
            operands[i + 1] = from[i].text();
        }
        write(instruction, operands);
        return to;
    }

    /** A place in the code. */
    public record Label(String name) {}

    public Label newLabel() {
        return new Label("L" + labels++);
    }

    public void place(Label label) {
        body.append(label.name).append(":\n");
    }

    public void branch(Label to) {
        write("bra", to.name);
    }

    public void branchIf(Pred condition, Label to) {
        write("@%s bra".formatted(condition.text()), to.name);
    }

    public void branchIfNot(Pred condition, Label to) {
        write("@!%s bra".formatted(condition.text()), to.name);
    }

    /** Each instruction of the body is executed by the threads for which the condition holds. For a few instructions without branches. */
    public void guarded(Pred condition, Runnable instructions) {
        if (!guard.isEmpty()) {
            throw new IllegalStateException("a guarded instruction has one guard, there is already " + guard);
        }
        guard = "@" + condition.text() + " ";
        instructions.run();
        guard = "";
    }

    /** The body is executed by the threads for which the condition holds. */
    public void when(Pred condition, Runnable then) {
        Label end = newLabel();
        branchIfNot(condition, end);
        then.run();
        place(end);
    }

    public void when(Pred condition, Runnable then, Runnable otherwise) {
        Label not = newLabel();
        Label end = newLabel();
        branchIfNot(condition, not);
        then.run();
        branch(end);
        place(not);
        otherwise.run();
        place(end);
    }

    /** The body for each unsigned {@code i = from, from + step, ...} below {@code end}. Changing the register {@code end} takes effect. */
    public void loop(U32 from, U32 end, U32 step, Consumer<U32> repeated) {
        Label start = newLabel();
        Label after = newLabel();
        U32 index = result("mov.u32", newU32(), from);
        branchIf(result("setp.ge.u32", newPred(), index, end), after);
        place(start);
        repeated.accept(index);
        result("add.u32", index, index, step);
        branchIf(result("setp.lt.u32", newPred(), index, end), start);
        place(after);
    }

    /** Threads for which the condition holds end. */
    public void exitIf(Pred condition) {
        write("@%s ret".formatted(condition.text()));
    }

    /** All threads of the block wait for each other. */
    public void barrier() {
        write("bar.sync", "0");
    }

    /** All threads of the warp wait for each other. */
    public void warpBarrier() {
        write("bar.warp.sync", "0xffffffff");
    }
}
