/* What a page, or any other program, calls of a model in WebAssembly. */

#include "model.h"

#define EXPORT(name) __attribute__((export_name(#name))) name

static const uint8_t weights[] = {
#embed "model.bin"
};
static model_state states[2];           /* the first runs, the test has both */
static model_scratch scratch;

/* Whether weights and machine are right: 1 or 0. */
int EXPORT(test)(void)
{
    return model_test(weights, states, &scratch);
}

#ifdef LONGEST                          /* bytes of a text, for language models */

static model_sampler sampler;
static const model_value *logits;       /* of the last token */
static uint8_t text[LONGEST];
static int32_t tokens[LONGEST];

/* Where `encode` reads and `decode` writes. */
uint8_t *EXPORT(text_at)(void)
{
    return text;
}

/* Where `encode` writes. */
int32_t *EXPORT(tokens_at)(void)
{
    return tokens;
}

/* The tokens of a text of `length` bytes; returns their number, negative if the model lacks one or
 * the text is longer than LONGEST. */
int32_t EXPORT(encode)(int32_t length)
{
    if (length < 0 || length > LONGEST)
        return -1;
    return model_encode(weights, text, length, tokens);
}

/* Spell a token; returns the number of bytes, negative if the model lacks the token. */
int32_t EXPORT(decode)(int32_t token)
{
    if (token < 0 || token >= MODEL_RESULTS)
        return -1;
    return model_decode(weights, token, text);
}

/* Begin a text. The temperature is 0, or from 0.01 to 100; the seed is not 0. */
void EXPORT(start)(double temperature, uint32_t seed)
{
    states[0] = (model_state){{{0}}};
    logits = 0;
    sampler = (model_sampler){temperature > 0 ? MODEL_BETA(temperature) : 0, seed, 0, 0};
}

/* Advance by a token; returns the logits, or 0 if the model lacks it. */
const model_value *EXPORT(step)(int32_t token)
{
    return logits = model_step(weights, &states[0], &scratch, token);
}

/* Draw the next token; returns it, negative before the first step. */
int32_t EXPORT(sample)(void)
{
    return logits ? model_sample(&sampler, logits) : -1;
}

#else

static int32_t frame[MODEL_CHANNELS];

/* Where `step` reads. */
int32_t *EXPORT(frame_at)(void)
{
    return frame;
}

/* Begin a sequence. */
void EXPORT(start)(void)
{
    states[0] = (model_state){{{0}}};
}

/* Advance by a frame; returns the results. */
const model_value *EXPORT(step)(void)
{
    return model_step(weights, &states[0], &scratch, frame);
}

#endif
