#include "model.h"

#include <stddef.h>

#if (-1 >> 1) != -1
#error "a negative number must keep its sign when it is shifted right"
#endif

#define STORED @STORED@                /* bytes of a number in the weights */
typedef model_value value;
typedef int@WIDE_BITS@_t wide;           /* of products: Sterna proved from formats and weights that they fit */
typedef uint@WIDE_BITS@_t uwide;

@ARITHMETIC@

const model_value *model_step(const uint8_t *weights, model_state *state, model_scratch *s,
                              @INPUT@)
{
@LOCALS@@CHECK@@CALLS@
    return @RESULT@;
}

@TEST@
@SAMPLER@
@TOKENIZER@
