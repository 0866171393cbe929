package baton.transfer.nixl;

import baton.transfer.Region;
import baton.transfer.TransferAgent.Notification;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.locks.LockSupport;

/**
 * An agent in a process of its own. It prints its metadata and the address of its memory, a line each, then a line for each message;
 * it ends when it is killed or its parent is gone.
 */
final class RemoteAgent {
    static final int SEED = 42;

    private RemoteAgent() {}

    /** @param args transport as UCX's {@code engine_config}, and bytes of memory */
    public static void main(String[] args) throws Exception {
        NixlExit.atShutdown();
        NixlAgent.Settings settings = args[0].isEmpty()
                ? NixlAgent.Settings.of("UCX")
                : new NixlAgent.Settings(List.of("UCX"), Map.of("UCX", Map.of("engine_config", args[0])));
        ProcessHandle parent = ProcessHandle.current().parent().orElseThrow();
        try (Arena arena = Arena.ofShared();
                NixlAgent agent =
                        NixlAgent.open((NixlLibrary.Found) NixlLibrary.find(Optional.empty()), "baton", settings)) {
            MemorySegment memory = arena.allocate(Long.parseLong(args[1]), 64);
            NixlAgentTest.fill(memory, SEED);
            agent.register(new Region(memory, Optional.empty()));
            System.out.println(HexFormat.of().formatHex(agent.metadata()));
            System.out.println(memory.address());
            while (parent.isAlive()) {
                for (Notification message : agent.takeNotifications()) {
                    System.out.println(
                            "message " + message.from() + " " + new String(message.message(), StandardCharsets.UTF_8));
                }
                LockSupport.parkNanos(1_000_000);
            }
        }
    }
}
