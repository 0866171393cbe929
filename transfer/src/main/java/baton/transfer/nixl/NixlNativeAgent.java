package baton.transfer.nixl;

import baton.transfer.TransferException;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * NIXL's agent with its backends and registrations. It can be destroyed and made anew, with the same registrations and under another
 * name, because peers keep the metadata of the earlier one. Belongs to the owner thread.
 */
final class NixlNativeAgent {
    private final NixlApi api;
    private final String name;
    private final NixlAgent.Settings settings;
    private final NixlThread thread;
    private final NixlScratch scratch;

    private final List<NixlRegistration> registrations = new ArrayList<>();
    private final List<MemorySegment> backends = new ArrayList<>();
    private MemorySegment handle = MemorySegment.NULL;
    private MemorySegment notificationMap = MemorySegment.NULL;
    private int lives;

    /** @param name of its first life */
    NixlNativeAgent(NixlApi api, String name, NixlAgent.Settings settings, NixlThread thread, NixlScratch scratch) {
        this.api = api;
        this.name = name;
        this.settings = settings;
        this.thread = thread;
        this.scratch = scratch;
    }

    /** NIXL's handle of the agent; {@link MemorySegment#NULL} while there is none. */
    MemorySegment handle() {
        return handle;
    }

    /** Where NIXL puts notifications that have arrived. */
    MemorySegment notificationMap() {
        return notificationMap;
    }

    boolean exists() {
        return handle.address() != 0;
    }

    /** The metadata of this agent for others. */
    byte[] metadata() throws TransferException {
        return NixlMetadata.seal(api.localMetadata(handle), scratch.identity());
    }

    /**
     * Makes the agent with its backends and registers memory with them. If that fails it must be {@linkplain #destroy() destroyed}.
     *
     * @throws TransferException if a backend cannot be created, or none of them reaches other processes
     */
    void create() throws TransferException {
        thread.check();
        handle = api.createAgent(lives == 0 ? name : name + "~" + lives);
        lives++;
        notificationMap = api.createNotificationMap();
        for (String backend : settings.backends()) {
            try {
                backends.add(
                        api.createBackend(handle, backend, settings.parameters().getOrDefault(backend, Map.of())));
            } catch (TransferException e) {
                throw new TransferException(
                        "NIXL has no backend " + backend + ": " + e.getMessage() + "; there are " + api.plugins(handle),
                        e);
            }
        }
        scratch.renew();
        api.register(handle, backends, scratch.memory());
        for (NixlRegistration registration : registrations) {
            api.register(handle, backends, registration.memory());
        }
        try {
            byte[] _ = api.localMetadata(handle);
        } catch (TransferException e) {
            throw new TransferException(
                    "none of the backends " + settings.backends() + " reaches other processes: " + e.getMessage(), e);
        }
    }

    /** The name under which an agent was made, whatever it calls itself after its connections had to be made anew. */
    static String firstName(String nativeName) {
        return nativeName.replaceFirst("~[0-9]+$", "");
    }

    /** After this nothing touches memory for the agent. Requests must have been released. */
    void destroy() {
        thread.check();
        if (exists()) {
            if (notificationMap.address() != 0) {
                api.destroyNotificationMap(notificationMap);
            }
            api.destroyAgent(handle);
            backends.forEach(api::destroyBackendHandle);
        }
        handle = MemorySegment.NULL;
        notificationMap = MemorySegment.NULL;
        backends.clear();
    }

    /** @throws TransferException if a backend refuses */
    void register(NixlRegistration registration) throws TransferException {
        thread.check();
        api.register(handle, backends, registration.memory());
        registrations.add(registration);
    }

    /** Whether peers may reach the memory of a registration. */
    boolean holds(NixlRegistration registration) {
        return registrations.contains(registration) && exists();
    }

    /** The registration of a range of memory. */
    Optional<NixlRegistration> find(long start, long length) {
        return registrations.stream()
                .filter(one -> one.memory().contains(start, length))
                .findFirst();
    }

    /** Drops a registration for the agent's next life. */
    void forget(NixlRegistration registration) {
        thread.check();
        registrations.remove(registration);
        scratch.revise();
    }

    /** Drops a registration at once. Nothing may be under way from or into its memory. */
    void deregister(NixlRegistration registration) {
        forget(registration);
        api.deregister(handle, backends, registration.memory());
    }
}
