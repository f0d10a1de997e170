// Writes text without end to the serial port.

#include <@NAME@.h>

static model_state states[2];
static model_scratch scratch;
static model_sampler sampler = {MODEL_BETA(0.7), 1, 0, 0};
static int32_t token;

void setup() {
  Serial.begin(115200);
  if (!model_test(model_weights, states, &scratch)) {
    Serial.println("the self-test failed");
    for (;;) {
    }
  }
  const uint8_t begin[] = "\n";
  model_encode(model_weights, begin, 1, &token);
}

void loop() {
  uint8_t text[MODEL_LONGEST];
  token = model_sample(&sampler, model_step(model_weights, states, &scratch, token));
  Serial.write(text, model_decode(model_weights, token, text));
}
