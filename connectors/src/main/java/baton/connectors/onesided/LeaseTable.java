package baton.connectors.onesided;

import baton.connectors.onesided.PeerNotification.Completion;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Leases of finished requests' blocks. Blocks are kept until all ranks that read them have completed, until the lease expires, or until
 * the connections of all readers that sent a heartbeat, or have them pushed, have ended: without its connection a reader can no longer
 * read. They are not kept if the answer that names them was lost and no reader is known. The rank's thread owns the table.
 */
public final class LeaseTable {
    private static final Logger log = LoggerFactory.getLogger(LeaseTable.class);

    private static final int MAX_EARLY_COMPLETIONS = 10_000;
    private static final int MAX_LOGGED = 200;

    private final RankContext context;
    private final PushSender pushes;
    private final RequestIdMap<Lease> leases = new RequestIdMap<>();
    /**
     * Completions of pushes that came before the lease, while the request runs or is yet to come: the reader needs no blocks, or has them
     * all. By the id that the reader knows.
     */
    private final Map<String, Lease> completionsBeforeLease = new HashMap<>();

    private static final class Lease {
        private final String requestId;
        private long expires;
        /** Agents that have completed, and how many there are. */
        private final Set<String> completed = new HashSet<>();

        private int readers = Integer.MAX_VALUE;
        /** Agents that have sent a heartbeat, or had registered a push when the request ended. */
        private final Set<String> wantedBy = new HashSet<>();
        /** The answer that names the blocks was lost, and no reader wants them. */
        private boolean unknown;

        private Lease(String requestId, long expires) {
            this.requestId = requestId;
            this.expires = expires;
        }
    }

    /** @param pushes end with the leases of their requests */
    public LeaseTable(RankContext context, PushSender pushes) {
        this.context = context;
        this.pushes = pushes;
    }

    public boolean isEmpty() {
        return leases.isEmpty();
    }

    /** Keeps a finished request's blocks until then, unless a heartbeat extends the lease. */
    public void open(String requestId, long expires) {
        Lease lease = new Lease(requestId, expires);
        lease.wantedBy.addAll(pushes.readers(requestId));
        takeEarlyCompletions(requestId).ifPresent(early -> {
            lease.completed.addAll(early.completed);
            lease.readers = early.readers;
        });
        leases.put(requestId, lease);
    }

    /**
     * Gives up the blocks of a request that ended without any, or lost its answer. A push of them fails, unless it has begun and its reader
     * will complete.
     */
    public void abandon(String requestId, long now) {
        Lease lease = leases.get(requestId);
        if (lease == null) {
            pushes.giveUp(requestId, now);
        } else {
            lease.unknown =
                    lease.wantedBy.isEmpty() && pushes.readers(requestId).isEmpty();
        }
    }

    /** A heartbeat: extends leases, never shortens them. */
    public void extend(List<String> requestIds, String from, long now) {
        for (String id : requestIds) {
            leases.find(id).ifPresent(lease -> {
                long extended = now + context.settings().leaseExtension().toNanos();
                lease.expires = extended - lease.expires > 0 ? extended : lease.expires;
                lease.wantedBy.add(from);
            });
        }
    }

    /** A reader has completed. False if there is no lease of exactly that request. */
    public boolean complete(Completion completion, String from) {
        Lease lease = leases.get(completion.requestId());
        if (lease == null) {
            return false;
        }
        complete(lease, from, completion.notifications());
        return true;
    }

    /** As {@link #complete}, of a push: the request may be known only by the common part of both legs' ids. */
    public boolean completePush(Completion completion, String from) {
        Optional<Lease> lease = leases.find(completion.requestId());
        lease.ifPresent(found -> complete(found, from, completion.notifications()));
        return lease.isPresent();
    }

    /** As {@link #completePush}, and remembers it if the request still runs, or is yet to come. */
    public void completePushEarly(Completion completion, String from, long now) {
        String id = completion.requestId();
        if (completePush(completion, from)) {
            return;
        }
        if (!completionsBeforeLease.containsKey(id) && completionsBeforeLease.size() >= MAX_EARLY_COMPLETIONS) {
            unknown(from, id);
            return;
        }
        long expires = now + context.settings().pushRegistrationTimeout().toNanos();
        Lease early = completionsBeforeLease.computeIfAbsent(id, _ -> new Lease(id, expires));
        complete(early, from, completion.notifications());
    }

    /** @param readers ranks that read from this one */
    private void complete(Lease lease, String reader, int readers) {
        lease.completed.add(reader);
        lease.readers = readers;
    }

    /** Requests have ended; those without a lease need no early completions any more. */
    public void finished(Set<String> requestIds) {
        for (String id : requestIds) {
            if (leases.get(id) == null) {
                takeEarlyCompletions(id);
            }
        }
    }

    private Optional<Lease> takeEarlyCompletions(String requestId) {
        Lease early = completionsBeforeLease.remove(requestId);
        return Optional.ofNullable(
                early != null ? early : completionsBeforeLease.remove(RequestIdMap.commonId(requestId)));
    }

    /** Logs and counts a notification about a request that has no lease. */
    public void unknown(String from, String notification) {
        log.warn(
                "Potentially invalid KV blocks for unrecognized request {} were retrieved by {}. They may have expired.",
                notification.length() <= MAX_LOGGED ? notification : notification.substring(0, MAX_LOGGED),
                from);
        context.stats().count("baton:kv_unknown_notifications");
        context.stats().notificationAfterExpiry();
    }

    /** Ends leases. Returns the requests with free blocks. */
    public Set<String> release(long now) {
        for (Iterator<Lease> all = completionsBeforeLease.values().iterator(); all.hasNext(); ) {
            Lease early = all.next();
            if (now - early.expires >= 0 && !pushes.isRunning(early.requestId)) {
                all.remove();
                unknown(String.join(", ", early.completed), early.requestId);
            }
        }
        Set<String> released = new LinkedHashSet<>();
        for (Lease lease : new ArrayList<>(leases.values())) {
            boolean served = lease.completed.size() >= lease.readers;
            boolean orphaned =
                    !lease.wantedBy.isEmpty() && lease.wantedBy.stream().allMatch(context.agent()::isGone);
            if (served) {
                log.debug("request {}: all readers have its blocks", lease.requestId);
            } else if (orphaned) {
                log.warn(
                        "Releasing KV blocks for request {}: {}, which wanted them, is gone.",
                        lease.requestId,
                        String.join(", ", lease.wantedBy));
                context.stats().count("baton:kv_orphaned_leases");
            } else if (lease.unknown) {
                log.debug("request {}: its answer was lost", lease.requestId);
            } else if (now - lease.expires >= 0) {
                log.warn(
                        "Releasing expired KV blocks for request {} which were retrieved by {} remote worker(s) before lease expired.",
                        lease.requestId,
                        lease.completed.size());
                context.stats().expiredLease();
            } else {
                continue;
            }
            released.add(lease.requestId);
            if (served) {
                pushes.forget(lease.requestId);
            } else {
                pushes.giveUp(lease.requestId, now);
            }
            leases.remove(lease.requestId);
        }
        return released;
    }
}
