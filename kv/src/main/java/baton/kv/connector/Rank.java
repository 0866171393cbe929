package baton.kv.connector;

/** A worker's place: its pipeline stage, and its share of the heads within that stage. */
public record Rank(int pipeline, int tensor) {
    public static final Rank FIRST = new Rank(0, 0);
}
