package baton.bench.plot;

import com.google.errorprone.annotations.FormatMethod;
import com.google.errorprone.annotations.FormatString;
import java.util.Locale;

/** An SVG element that is written piece by piece. */
final class Svg {
    private final StringBuilder out = new StringBuilder();
    /** Drawn over everything else. */
    private final StringBuilder texts = new StringBuilder();

    /** @param more attributes of the element */
    Svg(int width, int height, String title, String more) {
        add(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\"%s role=\"img\" aria-label=\"%s\">%n",
                width, height, more, Markup.escape(title));
    }

    void line(String kind, double x1, double y1, double x2, double y2) {
        add("<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>%n", kind, x1, y1, x2, y2);
    }

    void rectangle(String kind, double x, double y, double width, double height) {
        add("<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>%n", kind, x, y, width, height);
    }

    void text(double x, double y, String kind, String anchor, String text) {
        texts.append(String.format(
                Locale.ROOT,
                "<text%s x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>%n",
                kind.isEmpty() ? "" : " class=\"" + kind + "\"",
                x,
                y,
                anchor,
                Markup.escape(text)));
    }

    @FormatMethod
    void add(@FormatString String format, Object... values) {
        out.append(String.format(Locale.ROOT, format, values));
    }

    String end() {
        return out.append(texts).append("</svg>\n").toString();
    }

    /** The distance of an axis' marks: 1, 2 or 5 times a power of ten. */
    static double step(double atLeast) {
        double power = Math.pow(10, Math.floor(Math.log10(atLeast)));
        for (double factor : new double[] {1, 2, 5}) {
            if (factor * power >= atLeast) {
                return factor * power;
            }
        }
        return 10 * power;
    }
}
