package baton.grammar.rule;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;

/**
 * A set of Unicode scalar values.
 *
 * @param ranges in ascending order, neither overlapping nor adjacent
 */
public record CharSet(List<Range> ranges) {
    /** All that UTF-8 can represent: surrogates are not among them. */
    public static final CharSet ALL =
            new CharSet(List.of(new Range(0, 0xD7FF), new Range(0xE000, Character.MAX_CODE_POINT)));

    public static final CharSet NONE = new CharSet(List.of());

    /** Scalar values from {@code first} to {@code last}, both inclusive. */
    public record Range(int first, int last) {
        public Range {
            if (first < 0 || first > last || last > Character.MAX_CODE_POINT) {
                throw new IllegalArgumentException("first=" + first + " last=" + last);
            }
        }
    }

    public CharSet {
        ranges = List.copyOf(ranges);
    }

    /** The values from {@code first} to {@code last}, both inclusive, without surrogates. */
    public static CharSet range(int first, int last) {
        return union(List.of(new Range(first, last))).intersection(ALL);
    }

    public static CharSet of(int... codePoints) {
        List<Range> ranges = new ArrayList<>();
        for (int point : codePoints) {
            ranges.add(new Range(point, point));
        }
        return union(ranges).intersection(ALL);
    }

    /** All characters of a text. */
    public static CharSet of(String characters) {
        return of(characters.codePoints().toArray());
    }

    public boolean isEmpty() {
        return ranges.isEmpty();
    }

    public boolean contains(int codePoint) {
        int low = 0;
        int high = ranges.size();
        while (low < high) {
            int middle = (low + high) >>> 1;
            if (ranges.get(middle).last < codePoint) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low < ranges.size() && ranges.get(low).first <= codePoint;
    }

    public CharSet union(CharSet other) {
        List<Range> all = new ArrayList<>(ranges);
        all.addAll(other.ranges);
        return union(all);
    }

    public CharSet intersection(CharSet other) {
        List<Range> common = new ArrayList<>();
        int i = 0;
        int j = 0;
        while (i < ranges.size() && j < other.ranges.size()) {
            Range a = ranges.get(i);
            Range b = other.ranges.get(j);
            int first = Math.max(a.first, b.first);
            int last = Math.min(a.last, b.last);
            if (first <= last) {
                common.add(new Range(first, last));
            }
            if (a.last < b.last) {
                i++;
            } else {
                j++;
            }
        }
        return new CharSet(common);
    }

    /** The values that are not in this set. */
    public CharSet complement() {
        List<Range> others = new ArrayList<>();
        int next = 0;
        for (Range range : ranges) {
            if (next < range.first) {
                others.add(new Range(next, range.first - 1));
            }
            next = range.last + 1;
        }
        if (next <= Character.MAX_CODE_POINT) {
            others.add(new Range(next, Character.MAX_CODE_POINT));
        }
        return new CharSet(others).intersection(ALL);
    }

    public CharSet minus(CharSet other) {
        return intersection(other.complement());
    }

    /** The values of all ranges, which may overlap, surrogates included. */
    public static CharSet union(List<Range> ranges) {
        List<Range> merged = new ArrayList<>();
        for (Range range :
                ranges.stream().sorted(Comparator.comparingInt(Range::first)).toList()) {
            if (!merged.isEmpty() && range.first <= merged.getLast().last + 1) {
                Range last = merged.removeLast();
                merged.add(new Range(last.first, Math.max(last.last, range.last)));
            } else {
                merged.add(range);
            }
        }
        return new CharSet(merged);
    }
}
