/* value / 2^shift, rounded half up. */
static wide rs(wide x, int shift)
{
    return shift == 0 ? x : (x + ((wide)1 << (shift - 1))) >> shift;
}

/* The same, to the left if the shift is negative. */
static wide shifted(wide x, int shift)
{
    return shift < 0 ? x * ((wide)1 << -shift) : rs(x, shift);
}

static value clip(wide x, int bits)
{
    const int32_t most = INT32_MAX >> (32 - bits);
    return (value)(x > most ? most : x < -most - 1 ? -most - 1 : x);
}

/* A number of the weights: little-endian, two's complement. */
static int32_t stored(const uint8_t *at, int index)
{
    at += STORED * (size_t)index;
#if STORED == 2
    return (int16_t)(at[0] | at[1] << 8);
#else
    return (int32_t)(at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
#endif
}

/* floor(sqrt(x)) */
static uint32_t root_of(uwide x)
{
    uwide root = 0, bit = (uwide)1 << (8 * sizeof(uwide) - 2);
    for (; bit != 0; bit >>= 2) {
        if (x >= root + bit) {
            x -= root + bit;
            root += 2 * bit;
        }
        root >>= 1;
    }
    return (uint32_t)root;
}

/* The row of a token. */
static void embed(value *y, const uint8_t *table, int32_t token, int n)
{
    int i;
    table += STORED * (size_t)n * (size_t)token;
    for (i = 0; i < n; i++)
        y[i] = (value)stored(table, i);
}

/* A frame less its offsets, shifted channel by channel, and a 1. `numbers`: offsets, shifts. */
static void scale_frame(value *y, const int32_t *frame, const uint8_t *numbers, int n,
                        int bits, value one)
{
    int i;
    for (i = 0; i < n; i++)
        y[i] = clip(shifted((wide)frame[i] - stored(numbers, i), stored(numbers, n + i)),
                    bits);
    y[n] = one;
}

static void narrow(value *y, const value *x, int n, int shift, int bits)
{
    int i;
    for (i = 0; i < n; i++)
        y[i] = clip(shifted(x[i], shift), bits);
}

/* x times stored gains. */
static void scale(value *y, const value *x, const uint8_t *gains, int n, int shift,
                  int bits)
{
    int i;
    for (i = 0; i < n; i++)
        y[i] = clip(shifted((wide)x[i] * stored(gains, i), shift), bits);
}

static int64_t sum_of_squares(const value *x, int n)
{
    int64_t sum = 0;
    int i;
    for (i = 0; i < n; i++)
        sum += (int64_t)x[i] * x[i];
    return sum;
}

/* x in 8 bits, the largest magnitude being 127, and zeros to whole groups of four; returns that
 * magnitude. */
static int32_t eight_bits(int8_t *q, const value *x, int n, int k)
{
    int32_t largest = 0, m;
    wide reciprocal;
    int i;
    for (i = 0; i < n; i++) {
        m = x[i] < 0 ? -x[i] : x[i];
        if (m > largest)
            largest = m;
    }
    reciprocal = (wide)(((uwide)127 << k) / (uwide)(largest > 0 ? largest : 1));
    for (i = 0; i < n; i++)
        q[i] = (int8_t)rs(x[i] * reciprocal, k);
    for (; i % 4 != 0; i++)
        q[i] = 0;
    return largest;
}

/* x in 8 bits, divided by the root of its mean square; returns the scale of q. */
static int32_t norm(int8_t *q, const value *x, int n, int k, int root_frac, int scale_frac)
{
    uwide squares = 0;
    uint32_t r;
    int i;
    eight_bits(q, x, n, k);
    for (i = 0; i < n; i++)
        squares += (uwide)(q[i] * q[i]);
    r = root_of(squares << 2 * root_frac);
    if (r < (uint32_t)127 << root_frac)
        r = (uint32_t)127 << root_frac;
    return (int32_t)(((uwide)127 << (scale_frac + root_frac)) / r);
}

/* The root of a sum of squares and `more`. */
static int64_t root(const value *x, int n, int root_frac, int64_t more)
{
    const uint32_t r = root_of((uint64_t)(sum_of_squares(x, n) + more) << 2 * root_frac);
    return r == 0 ? 1 : r;
}

/* x in 8 bits, divided by a root; returns the scale of q. */
static int32_t quantize(int8_t *q, const value *x, int n, int k, int64_t over, int shift,
                        int scale_frac)
{
    const uint64_t v = ((uint64_t)eight_bits(q, x, n, k) << shift) / (uint64_t)over;
    const uint64_t most = ((uint64_t)1 << scale_frac) - 1;
    return (int32_t)(v < most ? v : most);
}

#ifndef MODEL_DOT
/* The sum of q times codes of two bits, weight + 1: byte j has those of the columns j, j + bytes,
 * j + 2 bytes and j + 3 bytes. Define MODEL_DOT to replace it. */
#define MODEL_DOT dot
static int32_t dot(const uint8_t *codes, const int8_t *q, int bytes)
{
    const int8_t *q1 = q + bytes, *q2 = q1 + bytes, *q3 = q2 + bytes;
    int32_t sum = 0;
    int j;
    for (j = 0; j < bytes; j++)
        sum += q[j] * (codes[j] & 3) + q1[j] * (codes[j] >> 2 & 3)
             + q2[j] * (codes[j] >> 4 & 3) + q3[j] * (codes[j] >> 6);
    return sum;
}
#endif

/* A ternary matrix times activations q of the scale v; plus `base`. Stored are the mantissa and the
 * shift of its scale, the matrix and the biases. */
static void project(value *y, const value *base, const uint8_t *weights, const int8_t *q,
                    int32_t v, int rows, int columns, int combine, int bits)
{
    const int bytes = (columns + 3) / 4, shift = weights[3];
    const uwide k = weights[0] | (uint32_t)weights[1] << 8 | (uint32_t)weights[2] << 16;
    const wide a = (wide)(((uwide)v * k + ((uwide)1 << combine >> 1)) >> combine);
    const uint8_t *const biases = weights + 4 + (size_t)rows * (size_t)bytes;
    int32_t sum = 0;
    wide z;
    int i;
    for (i = 0; i < columns; i++)
        sum += q[i];
    weights += 4;
    for (i = 0; i < rows; i++) {
        z = rs((wide)(MODEL_DOT(weights, q, bytes) - sum) * a, shift) + stored(biases, i);
        y[i] = clip(base ? z + base[i] : z, bits);
        weights += bytes;
    }
}

/* The sigmoid of x, or of -x, by a table over all x of `width` bits. */
static void sigmoid(value *y, const value *x, const uint8_t *table, int n, int width, int bits,
                    int reverse)
{
    const int last = 1 << (width - bits);
    int32_t at, first, next;
    int i, segment;
    for (i = 0; i < n; i++) {
        at = x[i] + (1 << (width - 1));
        segment = at >> bits;
        first = stored(table, reverse ? last - segment : segment);
        if (bits > 0) {
            next = stored(table, reverse ? last - segment - 1 : segment + 1);
            first += (int32_t)rs((wide)(next - first) * (at & ((1 << bits) - 1)), bits);
        }
        y[i] = (value)first;
    }
}

/* h = f h + (1 - f) c, with the gate f; or, unless it keeps, the gate 1 - f. */
static void recur(value *h, const value *gate, const value *c, int n, int frac, int keeps)
{
    int i;
    for (i = 0; i < n; i++) {
        const wide f = keeps ? gate[i] : ((wide)1 << frac) - gate[i];
        h[i] = (value)rs(f * h[i] + (((wide)1 << frac) - f) * c[i], frac);
    }
}

static void multiply(value *y, const value *x, const value *z, int n, int shift, int bits)
{
    int i;
    for (i = 0; i < n; i++)
        y[i] = clip(rs((wide)x[i] * z[i], shift), bits);
}

static void add(value *y, const value *x, const value *z, int n, int bits)
{
    int i;
    for (i = 0; i < n; i++)
        y[i] = clip((wide)x[i] + z[i], bits);
}
