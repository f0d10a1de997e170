
/* Step `t` of one of two sequences of frames of all magnitudes. */
static const model_value *test_step(const uint8_t *weights, model_state *state,
                                    model_scratch *scratch, int row, int t)
{
    int32_t frame[MODEL_CHANNELS];
    uint32_t a;
    int i;
    for (i = 0; i < MODEL_CHANNELS; i++) {
        a = (uint32_t)((row * @LENGTH@ + t) * MODEL_CHANNELS + i + 1) * 2654435761u;
        a = (a ^ a >> 15) * 2246822519u;
        frame[i] = ((int32_t)(a >> (32 - MODEL_BITS)) - (1 << (MODEL_BITS - 1))) >> t;
    }
    return model_step(weights, state, scratch, frame);
}
