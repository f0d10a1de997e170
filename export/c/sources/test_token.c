
/* Step `t` of one of two sequences of tokens from the whole vocabulary. */
static const model_value *test_step(const uint8_t *weights, model_state *state,
                                    model_scratch *scratch, int row, int t)
{
    return model_step(weights, state, scratch, (37 * t + 101 * row + 32) % MODEL_RESULTS);
}
