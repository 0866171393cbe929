package baton.transfer.embedded;

import baton.transfer.Transfer.Cause;
import baton.transfer.TransferAgent.Permit;
import java.lang.foreign.MemorySegment;
import java.security.SecureRandom;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Optional;
import java.util.TreeMap;

/** The permits that an agent has given and that are not closed. The registry's monitor guards them. */
final class Permits {
    private final EmbeddedAgent agent;
    private final SecureRandom random = new SecureRandom();
    private final Map<Long, Given> byToken = new HashMap<>();

    Permits(EmbeddedAgent agent) {
        this.agent = agent;
    }

    Permit give(List<MemorySegment> memory) {
        NavigableMap<Long, Long> ends = new TreeMap<>();
        memory.stream().sorted(Comparator.comparingLong(MemorySegment::address)).forEach(each -> {
            Map.Entry<Long, Long> before = ends.lastEntry();
            boolean joins = before != null && before.getValue() >= each.address();
            ends.merge(joins ? before.getKey() : each.address(), each.address() + each.byteSize(), Math::max);
        });
        synchronized (agent.registry()) {
            long token;
            do {
                token = random.nextLong();
            } while (token == 0 || byToken.containsKey(token));
            Given given = new Given(token, ends);
            byToken.put(token, given);
            return given;
        }
    }

    Optional<Given> of(long token) {
        return Optional.ofNullable(byToken.get(token));
    }

    /** A permit; a write by it touches it. */
    final class Given implements Permit {
        private final long token;
        /** Where pieces of memory end, by where they begin; no two touch. */
        private final NavigableMap<Long, Long> ends;

        private long writes;

        private Given(long token, NavigableMap<Long, Long> ends) {
            this.token = token;
            this.ends = ends;
        }

        /** Whether all of some memory is among what it is for. */
        boolean holds(MemorySegment memory) {
            Map.Entry<Long, Long> piece = ends.floorEntry(memory.address());
            return piece != null && memory.address() + memory.byteSize() <= piece.getValue();
        }

        /** A write by it begins. */
        void begin() {
            writes++;
        }

        @Override
        public long writes() {
            synchronized (agent.registry()) {
                return writes;
            }
        }

        @Override
        public long token() {
            return token;
        }

        @Override
        public void close() {
            synchronized (agent.registry()) {
                byToken.remove(token);
            }
            agent.endAll(moving -> moving.touches(this), Cause.NOT_PERMITTED, "the permit was closed");
        }
    }
}
