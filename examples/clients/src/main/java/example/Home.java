package example;

/** A person's home, as a text names it. */
public record Home(Town town, boolean certain) {
    public enum Town {
        HARROW,
        EASTVALE,
        OTHER
    }

    static final String QUESTION = "Tomas lives in Harrow. In which town does Tomas live?";
}
