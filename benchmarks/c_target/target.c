/* A model on a microcontroller without an operating system, its output by semihosting. */

#include "model.h"

extern uint8_t ram_end[], stack_top[];
void begin(void);

#ifdef __arm__
__attribute__((section(".start"), used)) static const void *const vectors[] = {stack_top, begin};

static void host(int operation, const void *argument)
{
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}
#else
__asm__(".section .start, \"ax\"\n.globl _start\n_start: la sp, stack_top\n j begin\n.text\n");

static void host(int operation, const void *argument)
{
    register int a0 __asm__("a0") = operation;
    register const void *a1 __asm__("a1") = argument;
    __asm__ volatile(".option push\n.option norvc\n.balign 16\nslli x0, x0, 0x1f\nebreak\n"
                     "srai x0, x0, 7\n.option pop" : "+r"(a0) : "r"(a1) : "memory");
}
#endif

static void say(const char *text)
{
    host(4, text);
}

static void number(uint32_t value)
{
    char digits[11], *at = digits + 10;
    *at = 0;
    do
        *--at = (char)('0' + value % 10);
    while (value /= 10);
    say(at);
    say(" ");
}

static model_state states[2];
static model_scratch scratch;

static void steps(void)
{
    int t;
#ifdef FRAMES
    static const int32_t frames[][MODEL_CHANNELS] = {FRAMES};
    int i;
    for (t = 0; t < STEPS; t++) {
        const model_value *results = model_step(model_weights, states, &scratch, frames[t]);
        for (i = 0; i < MODEL_RESULTS; i++)
            number((uint16_t)results[i]);
    }
#else
    model_sampler sampler = {MODEL_BETA(0.7), 1, 0, 0};
    int32_t token = 'T';
    for (t = 0; t < STEPS; t++) {
        token = model_sample(&sampler, model_step(model_weights, states, &scratch, token));
        number((uint32_t)token);
    }
#endif
}

void begin(void)
{
    uint8_t here, *at;
    for (at = (uint8_t *)states; at < (uint8_t *)(states + 2); at++)
        *at = 0;
    for (at = ram_end; at < &here - 64; at++)       /* what the stack overwrites */
        *at = 0xa5;
    say(model_test(model_weights, states, &scratch) ? "passed " : "FAILED ");
    steps();
    for (at = ram_end; at < stack_top && *at == 0xa5; at++)
        ;
    say("stack ");
    number((uint32_t)(stack_top - at));
    host(0x18, (const void *)0x20026);
    for (;;)
        ;
}
