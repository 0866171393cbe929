package baton.engine.sampling;

import java.util.List;

/**
 * The log probability of a token, and the most probable ones at its place.
 *
 * @param id the token
 * @param logprob natural logarithm of its probability
 * @param rank 1 for the most probable token
 * @param top the most probable tokens, best first
 */
public record TokenLogprobs(int id, float logprob, int rank, List<Candidate> top) {
    /** One of the most probable tokens. */
    public record Candidate(int id, float logprob) {}
}
