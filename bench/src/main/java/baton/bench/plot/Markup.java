package baton.bench.plot;

/** Text in XML and HTML. */
public final class Markup {
    private Markup() {}

    /** Escapes text or an attribute; characters that XML does not allow are replaced by spaces. */
    public static String escape(String text) {
        StringBuilder escaped = new StringBuilder();
        text.codePoints().forEach(c -> {
            switch (c) {
                case '&' -> escaped.append("&amp;");
                case '<' -> escaped.append("&lt;");
                case '>' -> escaped.append("&gt;");
                case '"' -> escaped.append("&quot;");
                default -> {
                    boolean allowed = c >= ' ' && c <= 0xD7FF || c >= 0xE000 && c <= 0xFFFD || c >= 0x10000;
                    escaped.appendCodePoint(allowed ? c : ' ');
                }
            }
        });
        return escaped.toString();
    }
}
