package baton.cli;

import java.util.regex.Matcher;
import java.util.regex.Pattern;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.TypeConversionException;

/** Numbers as vLLM takes them: {@code 2048}, {@code 2k} (2,000), {@code 2K} (2,048), {@code 1.5G}, and so on. */
final class HumanSize {
    private static final Pattern FORM = Pattern.compile("(\\d+(?:\\.\\d+)?)([kKmMgGtT]?)(?:i?[bB])?");

    /** More than any machine has, and little enough to be added and multiplied. */
    private static final long MOST = 1L << 50;

    private HumanSize() {}

    static long parse(String text) {
        Matcher matcher = FORM.matcher(text.strip());
        if (!matcher.matches()) {
            throw new TypeConversionException(
                    "'" + text + "' is not a number such as 4096, 4k (4000), 4K (4096) or 2G");
        }
        double factor = switch (matcher.group(2)) {
            case "k" -> 1e3;
            case "K" -> 1 << 10;
            case "m" -> 1e6;
            case "M" -> 1 << 20;
            case "g" -> 1e9;
            case "G" -> 1 << 30;
            case "t" -> 1e12;
            case "T" -> 1L << 40;
            default -> 1;
        };
        double number = Double.parseDouble(matcher.group(1)) * factor;
        if (number > MOST) {
            throw new TypeConversionException("'" + text + "' is too large: at most 1024T");
        }
        return Math.round(number);
    }

    static final class AsInt implements ITypeConverter<Integer> {
        @Override
        public Integer convert(String value) {
            long parsed = parse(value);
            if (parsed > Integer.MAX_VALUE) {
                throw new TypeConversionException("'" + value + "' is too large");
            }
            return (int) parsed;
        }
    }

    static final class AsLong implements ITypeConverter<Long> {
        @Override
        public Long convert(String value) {
            return parse(value);
        }
    }
}
