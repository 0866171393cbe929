package baton.connectors.onesided;

import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/**
 * Values by request id. Ids are exact, except those of a decode request that came at the same time as the prefill request: the decode
 * instance knows only the common part of both ids. {@link #find} accepts either.
 */
public final class RequestIdMap<T> {
    /**
     * Eight random digits, and the number of a sample where there are several. The number is shorter than eight digits, so that it is
     * distinct from the random ones.
     */
    private static final Pattern RANDOM_END = Pattern.compile("-[0-9a-f]{8}(-[0-9]{1,7})?$");

    private final Map<String, T> byId = new LinkedHashMap<>();
    private final Map<String, Set<String>> idsByCommonId = new HashMap<>();

    /** The common part of the ids of a request's two legs: each instance may have added a random end. */
    public static String commonId(String requestId) {
        return RANDOM_END.matcher(requestId).replaceFirst("");
    }

    public void put(String requestId, T value) {
        byId.put(requestId, value);
        idsByCommonId
                .computeIfAbsent(commonId(requestId), _ -> new LinkedHashSet<>())
                .add(requestId);
    }

    /** The value of exactly that request. */
    @Nullable
    public T get(String requestId) {
        return byId.get(requestId);
    }

    /** The value of exactly that request, or, if there is none, of the first with this common id. */
    public Optional<T> find(String id) {
        T exact = byId.get(id);
        if (exact != null) {
            return Optional.of(exact);
        }
        Set<String> ids = idsByCommonId.get(id);
        return ids == null
                ? Optional.empty()
                : Optional.ofNullable(byId.get(ids.iterator().next()));
    }

    @Nullable
    public T remove(String requestId) {
        T removed = byId.remove(requestId);
        if (removed != null) {
            idsByCommonId.computeIfPresent(commonId(requestId), (_, ids) -> {
                ids.remove(requestId);
                return ids.isEmpty() ? null : ids;
            });
        }
        return removed;
    }

    public boolean isEmpty() {
        return byId.isEmpty();
    }

    public Collection<T> values() {
        return Collections.unmodifiableCollection(byId.values());
    }
}
