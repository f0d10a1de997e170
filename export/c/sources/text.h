
typedef struct {
    uint32_t beta;          /* MODEL_BETA(temperature), 0 for the most likely token */
    uint32_t state;         /* the seed, not 0 */
    uint32_t top_k;         /* draw from this many of the most likely tokens; 0 for all */
    uint32_t top_p;         /* MODEL_TOP_P(share): from those that reach it; 0 for all */
} model_sampler;

/* Of a temperature from 0.01 to 100, and of a share up to 1. */
#define MODEL_BETA(temperature) ((uint32_t)(1477.3197218702985 / (temperature) + 0.5))
#define MODEL_TOP_P(share) ((uint32_t)((share) * 65536 + 0.5) + ((share) * 65536 < 0.5))

/* Draw the next token. */
int32_t model_sample(model_sampler *sampler, const model_value *logits);

/* The tokens of a text of `length` bytes, at most as many as these; returns their number, negative
 * if the model lacks one. */
int32_t model_encode(const uint8_t *weights, const uint8_t *text, int32_t length, int32_t *tokens);

/* Spell a token, in at most MODEL_LONGEST bytes; returns their number. */
int32_t model_decode(const uint8_t *weights, int32_t token, uint8_t *text);
