package baton.engine;

import java.util.List;

/**
 * The log probability of a token, and the most probable ones at its place.
 *
 * @param id the token
 * @param logprob natural logarithm of its probability; negative infinity if the model rules it out
 * @param rank 1 for the most probable token; among equals the smaller id comes first
 * @param top the most probable tokens in order of rank, as many as asked for; the token itself may or may not be among them
 */
public record TokenLogprobs(int id, float logprob, int rank, List<Candidate> top) {
    /** One of the most probable tokens. */
    public record Candidate(int id, float logprob) {}
}
