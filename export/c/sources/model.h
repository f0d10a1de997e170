/* @TITLE@
 *
 * Made by Sterna @VERSION@ from the model with this SHA-256:
 * @MODEL_SHA256@
 *
 * Integers alone: no memory is allocated, and nothing here is written to but what a caller passes.
 * Two states are two instances. A result belongs to the scratch, until its next use. */

#ifndef MODEL_H
#define MODEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
@SIZES@
@ENUM@
};

typedef int@VALUE_BITS@_t model_value;

/* Zeros at the start. */
typedef struct {
    model_value h[MODEL_LAYERS][MODEL_WIDTH];
} model_state;

/* Needs no initial value, and keeps nothing from step to step. */
typedef struct {
@SCRATCH_ARRAYS@
} model_scratch;

@DECLARED@/* Advance by a @STEP@; returns MODEL_RESULTS @RESULT_NAME@@REFUSAL@. */
const model_value *model_step(const uint8_t *weights, model_state *state, model_scratch *scratch,
                              @INPUT@);

/* Whether the weights are those of this file, and this compiler and processor compute the integers
 * of the reference from them: 1 or 0. Both states are zeros afterwards. */
int model_test(const uint8_t *weights, model_state states[2], model_scratch *scratch);
@TEXT@
#ifdef __cplusplus
}
#endif

#endif
