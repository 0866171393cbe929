package baton.engine;

import baton.kv.ConfigException;
import java.util.ArrayList;
import java.util.List;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Which cores each rank computes on.
 *
 * @param coresByRank cores of each rank, stage after stage and in each stage rank after rank; empty: the ranks are not pinned
 */
public record CpuBinding(List<SortedSet<Integer>> coresByRank) {
    /** Every rank runs where the operating system puts it. */
    public static final CpuBinding NONE = new CpuBinding(List.of());

    private static final Pattern RANGE = Pattern.compile("(\\d{1,5})(?:-(\\d{1,5}))?");
    private static final String SYNTAX =
            "must be 'auto' (not pinned) or a list of cores for each rank, such as '0-3|4-7' or '0,2,4|1,3,5'";

    public CpuBinding {
        coresByRank = List.copyOf(coresByRank);
    }

    /**
     * Reads vLLM's {@code VLLM_CPU_OMP_THREADS_BIND}: {@code auto}, {@code all} or {@code nobind}, which here all mean not pinned,
     * or a list of cores for each rank, the lists separated by {@code |}.
     *
     * @throws ConfigException naming the field if the text is neither
     */
    public static CpuBinding parse(String field, String text) {
        if (List.of("auto", "all", "nobind").contains(text)) {
            return NONE;
        }
        List<SortedSet<Integer>> ranks = new ArrayList<>();
        for (String list : text.split("\\|", -1)) {
            SortedSet<Integer> cores = new TreeSet<>();
            for (String range : list.split(",", -1)) {
                Matcher matcher = RANGE.matcher(range.strip());
                if (!matcher.matches()) {
                    throw new ConfigException(field, "is '" + text + "', " + SYNTAX);
                }
                int first = Integer.parseInt(matcher.group(1));
                int last = matcher.group(2) == null ? first : Integer.parseInt(matcher.group(2));
                if (last < first) {
                    throw new ConfigException(field, "is '" + text + "': the range " + range + " is empty");
                }
                for (int core = first; core <= last; core++) {
                    cores.add(core);
                }
            }
            ranks.add(cores);
        }
        return new CpuBinding(ranks);
    }
}
