static void hash_values(sha256 *s, const value *x, int n)
{
    int i, shift;
    for (i = 0; i < n; i++)
        for (shift = 0; shift < 32; shift += 8)
            sha256_byte(s, (uint32_t)x[i] >> shift & 255);
}

static void clear(model_state states[2])
{
    int i, layer;
    for (layer = 0; layer < MODEL_LAYERS; layer++)
        for (i = 0; i < MODEL_WIDTH; i++)
            states[0].h[layer][i] = states[1].h[layer][i] = 0;
}

@STEP_OF_TEST@
int model_test(const uint8_t *weights, model_state states[2], model_scratch *scratch)
{
    static const uint32_t stored_digest[8] = {
@WEIGHTS_DIGEST@
    };
    static const uint32_t digest[8] = {
@DIGEST@
    };
    sha256 s;
    uint32_t at;
    int row, t;
    sha256_start(&s);
    for (at = 0; at < MODEL_WEIGHTS; at++)
        sha256_byte(&s, weights[at]);
    if (!sha256_is(&s, stored_digest))
        return 0;
    sha256_start(&s);
    clear(states);
    for (row = 0; row < 2; row++)
        for (t = 0; t < @LENGTH@; t++)
            hash_values(&s, test_step(weights, &states[row], scratch, row, t), MODEL_RESULTS);
    for (t = 0; t < MODEL_LAYERS; t++)
        for (row = 0; row < 2; row++)
            hash_values(&s, states[row].h[t], MODEL_WIDTH);
    clear(states);
    return sha256_is(&s, digest);
}
