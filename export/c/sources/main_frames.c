/* Runs over a table of frames on the standard input: a frame a line, its numbers separated by
 * commas, in the units of the network's recordings. Prints the results, a line for each frame.
 *
 *     ./@NAME@ < FRAMES.csv
 */

#include <stdio.h>
#include <stdlib.h>

#include "model.h"

static model_state states[2];
static model_scratch scratch;
@LOADER@
/* A number with `frac` fraction bits, rounded half up and clipped. */
static int32_t fixed(double number, int frac)
{
    const double low = -(double)((uint32_t)1 << (MODEL_BITS - 1));
    int32_t whole;
    for (; frac > 0; frac--)
        number *= 2;
    for (; frac < 0; frac++)
        number /= 2;
    number += 0.5;
    if (number < low)
        return (int32_t)low;
    if (number >= -low)
        return (int32_t)(-low - 1);
    whole = (int32_t)number;
    return whole - (whole > number);
}

int main(void)
{
    static const int16_t fractions[MODEL_CHANNELS] = {
@FRACTIONS@
    };
    static char line[65536];
    const model_value *results;
    int32_t frame[MODEL_CHANNELS];
    double number;
    char *at, *end;
    long row = 0;
    int i;
@LOAD@    if (!model_test(model_weights, states, &scratch)) {
        fputs("@NAME@: the self-test failed: the weights, the compiler or the processor is wrong\n",
              stderr);
        return 1;
    }
    for (i = 0; i < MODEL_RESULTS; i++)
        printf("%sy%d", i ? "," : "", i);
    putchar('\n');
    while (fgets(line, sizeof line, stdin)) {
        row++;
        for (at = line, i = 0; i < MODEL_CHANNELS; i++, at = *end == ',' ? end + 1 : end) {
            number = strtod(at, &end);
            if (end == at || number != number)
                break;
            frame[i] = fixed(number, fractions[i]);
        }
        if (i == 0 && row == 1 && end == at)        /* a header */
            continue;
        if (i < MODEL_CHANNELS || (*at != '\n' && *at != '\r' && *at != 0)) {
            fprintf(stderr, "@NAME@: line %ld: expected %d numbers\n", row, MODEL_CHANNELS);
            return 2;
        }
        results = model_step(model_weights, states, &scratch, frame);
        for (i = 0; i < MODEL_RESULTS; i++)
            printf("%s%.12g", i ? "," : "", (double)results[i] / MODEL_ONE);
        putchar('\n');
    }
    return 0;
}
