#include "model.h"

const uint8_t model_weights[MODEL_WEIGHTS] = {
@BYTES@
};
