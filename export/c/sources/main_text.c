/* Continues the text on the standard input:
 *
 *     printf 'The ' | ./@NAME@ [tokens=200] [temperature=0.7] [top_k=K] [top_p=P] [seed=1]
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

enum { MOST = 65536 };

static model_state states[2];
static model_scratch scratch;
static uint8_t prompt[MOST + 1], spelled[MODEL_LONGEST];
static int32_t tokens[MOST];
@LOADER@
/* UTF-8 as it comes, with U+FFFD for what is not. */
static unsigned waiting, seen, low = 0x80, high = 0xbf;
static uint8_t begun[4];

static void put(int byte)
{
    if (waiting > 0 && byte >= (int)low && byte <= (int)high) {
        begun[seen++] = (uint8_t)byte;
        low = 0x80, high = 0xbf;
        if (--waiting == 0)
            fwrite(begun, 1, seen, stdout);
        return;
    }
    if (waiting > 0)
        fputs("\xef\xbf\xbd", stdout);
    waiting = 0;
    low = 0x80, high = 0xbf;
    if (byte >= 0 && byte < 0x80) {
        putchar(byte);
    } else if (byte >= 0xc2 && byte <= 0xf4) {
        waiting = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
        low = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
        high = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
        begun[0] = (uint8_t)byte;
        seen = 1;
    } else if (byte >= 0) {
        fputs("\xef\xbf\xbd", stdout);
    }
}

static int refuse(const char *message, const char *what)
{
    fprintf(stderr, "@NAME@: %s%s\n", message, what);
    return 2;
}

/* The number after "name=", or a negative one if the argument is not that, or not from least to
 * most. */
static double number(const char *argument, const char *name, double least, double most, int whole)
{
    const size_t length = strlen(name);
    char *end;
    double found;
    if (strncmp(argument, name, length) != 0 || argument[length] != '=')
        return -1;
    found = strtod(argument + length + 1, &end);
    if (end == argument + length + 1 || *end || !(found >= least && found <= most)
        || (whole && found != (double)(uint32_t)found))
        return -1;
    return found;
}

int main(int argc, char **argv)
{
    model_sampler sampler = {MODEL_BETA(0.7), 1, 0, 0};
    const model_value *logits = 0;
    int32_t count, i, length, token;
    long left = 200;
    size_t size;
    int at;
    double found;
    for (at = 1; at < argc; at++) {
        if ((found = number(argv[at], "tokens", 1, 1e9, 1)) >= 0)
            left = (long)found;
        else if ((found = number(argv[at], "temperature", 0.01, 100, 0)) >= 0)
            sampler.beta = MODEL_BETA(found);
        else if (number(argv[at], "temperature", 0, 0, 0) >= 0)
            sampler.beta = 0;
        else if ((found = number(argv[at], "top_k", 1, 1e9, 1)) >= 0)
            sampler.top_k = (uint32_t)found;
        else if ((found = number(argv[at], "top_p", 1e-9, 1, 0)) >= 0)
            sampler.top_p = MODEL_TOP_P(found);
        else if ((found = number(argv[at], "seed", 1, 4294967295.0, 1)) >= 0)
            sampler.state = (uint32_t)found;
        else
            return refuse("expected tokens=N, temperature=T (0, or 0.01 to 100), top_k=K, top_p=P "
                          "or seed=S, got ", argv[at]);
    }
    size = fread(prompt, 1, sizeof prompt, stdin);
    if (size > MOST)
        return refuse("the prompt is longer than 65536 bytes", "");
    if (size == 0)
        prompt[size++] = '\n';
    count = model_encode(model_weights, prompt, (int32_t)size, tokens);
    if (count < 0)
        return refuse("the model lacks a character of the prompt", "");
    if (count == 0)
        return refuse("the prompt has no tokens", "");
@LOAD@    if (!model_test(model_weights, states, &scratch)) {
        fputs("@NAME@: the self-test failed: the weights, the compiler or the processor is wrong\n",
              stderr);
        return 1;
    }
    fwrite(prompt, 1, size, stdout);
    for (i = 0; i < count; i++)
        logits = model_step(model_weights, states, &scratch, tokens[i]);
    while (left-- > 0) {
        token = model_sample(&sampler, logits);
        if (token == MODEL_END)
            break;
        length = model_decode(model_weights, token, spelled);
        for (i = 0; i < length; i++)
            put(spelled[i]);
        fflush(stdout);
        logits = model_step(model_weights, states, &scratch, token);
    }
    put(-1);
    putchar('\n');
    return 0;
}
