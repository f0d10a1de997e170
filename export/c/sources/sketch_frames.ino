// Reads a frame a line from the serial port, @CHANNELS@ whole numbers, and prints the results.

#include <@NAME@.h>

static model_state states[2];
static model_scratch scratch;

void setup() {
  Serial.begin(115200);
  if (!model_test(model_weights, states, &scratch)) {
    Serial.println("the self-test failed");
    for (;;) {
    }
  }
}

void loop() {
  int32_t frame[MODEL_CHANNELS];
  for (int i = 0; i < MODEL_CHANNELS; i++) {
    while (!Serial.available()) {
    }
    frame[i] = (int32_t)Serial.parseInt();
  }
  const model_value *results = model_step(model_weights, states, &scratch, frame);
  for (int i = 0; i < MODEL_RESULTS; i++) {
    Serial.print(results[i]);
    Serial.print(i + 1 < MODEL_RESULTS ? ',' : '\n');
  }
}
