/* The integer sampler: the same token for the same logits and seed, as everywhere in Sterna. */

/* The chance of a logit, that of the largest being 65536. */
static uint32_t chance(const model_sampler *s, int32_t largest, int32_t logit)
{
    static const uint16_t powers[64] = {    /* 2^(16 - j / 64) - 1 */
@POWERS@
    };
    const uint64_t u = ((uint64_t)(uint32_t)(largest - logit) * s->beta
                        + ((uint64_t)1 << (@SHIFT@ - 1))) >> @SHIFT@;
    return u >= 17 * 64 ? 0 : (powers[u & 63] + (uint32_t)1) >> (u >> 6);
}

/* The chances of the logits above a level together, and how many these are. */
static uint64_t above(const model_sampler *s, const model_value *logits, int32_t largest,
                      int64_t level, uint32_t *count)
{
    uint64_t sum = 0;
    int i;
    *count = 0;
    for (i = 0; i < MODEL_RESULTS; i++)
        if (logits[i] > level) {
            sum += chance(s, largest, logits[i]);
            ++*count;
        }
    return sum;
}

int32_t model_sample(model_sampler *s, const model_value *logits)
{
    int32_t best = 0, largest;
    int64_t level, low, high, middle;   /* logits above it stay, and the first `room` that equal it */
    uint32_t room = 0, left, count, draw;
    uint64_t sum, bound, threshold;
    int i, round;
    for (i = 1; i < MODEL_RESULTS; i++)
        if (logits[i] > logits[best])
            best = i;
    if (s->beta == 0)
        return best;
    largest = logits[best];
    level = (int64_t)MODEL_LOWEST - 1;
    if (s->top_k > 0 && s->top_k < MODEL_RESULTS) {
        low = MODEL_LOWEST, high = largest;         /* the largest level that k logits reach */
        while (low < high) {
            middle = low + (high - low + 1) / 2;
            above(s, logits, largest, middle - 1, &count);
            if (count >= s->top_k)
                low = middle;
            else
                high = middle - 1;
        }
        level = low;
        above(s, logits, largest, level, &count);
        room = s->top_k - count;
    }
    if (s->top_p > 0) {
        bound = s->top_p * (above(s, logits, largest, level, &count)
                            + (room ? (uint64_t)room * chance(s, largest, (int32_t)level) : 0));
        low = level, high = largest;                /* the lowest level with less than that above */
        while (low < high) {
            middle = low + (high - low) / 2;
            if (above(s, logits, largest, middle, &count) << 16 < bound)
                high = middle;
            else
                low = middle + 1;
        }
        if (low > level)
            room = MODEL_RESULTS;
        level = low;
        bound -= above(s, logits, largest, level, &count) << 16;
        for (left = 0, sum = 0; left < room && sum < bound; left++)
            sum += (uint64_t)chance(s, largest, (int32_t)level) << 16;
        room = left;
    }
    s->state ^= s->state << 13;
    s->state ^= s->state >> 17;
    s->state ^= s->state << 5;
    draw = s->state;
    threshold = 0;
    for (round = 0; round < 2; round++) {           /* the sum of all, then the token */
        sum = 0;
        left = room;
        for (i = 0; i < MODEL_RESULTS; i++) {
            if (logits[i] < level || (logits[i] == level && left == 0))
                continue;
            left -= logits[i] == level;
            sum += chance(s, largest, logits[i]);
            if (round == 1 && sum > threshold)
                return i;
        }
        threshold = draw * (sum >> 32) + (draw * (sum & 0xffffffff) >> 32);
    }
    return best;
}
