package example;

/** What a text says about where somebody lives. */
public record Home(Town town, boolean certain) {
    public enum Town {
        HARROW,
        EASTVALE,
        OTHER
    }

    static final String QUESTION = "Tomas lives in Harrow. In which town does Tomas live?";
}
