/* SHA-256 (FIPS 180-4). */
typedef struct {
    uint32_t h[8], w[16], bytes;
} sha256;

static uint32_t rotated(uint32_t x, int by)
{
    return x >> by | x << (32 - by);
}

static void sha256_block(sha256 *s)
{
    static const uint32_t k[64] = {
@ROUNDS@
    };
    uint32_t a[8], x, y;
    int i;
    for (i = 0; i < 8; i++)
        a[i] = s->h[i];
    for (i = 0; i < 64; i++) {      /* number j of the standard is a[(j - i) & 7] */
        const uint32_t a0 = a[-i & 7], a4 = a[(4 - i) & 7];
        uint32_t *const w = &s->w[i & 15];
        if (i >= 16) {
            x = s->w[(i + 1) & 15];
            y = s->w[(i + 14) & 15];
            *w += s->w[(i + 9) & 15] + (rotated(x, 7) ^ rotated(x, 18) ^ x >> 3)
                + (rotated(y, 17) ^ rotated(y, 19) ^ y >> 10);
        }
        x = a[(7 - i) & 7] + k[i] + *w + (rotated(a4, 6) ^ rotated(a4, 11) ^ rotated(a4, 25))
          + ((a4 & a[(5 - i) & 7]) ^ (~a4 & a[(6 - i) & 7]));
        y = (rotated(a0, 2) ^ rotated(a0, 13) ^ rotated(a0, 22))
          + ((a0 & a[(1 - i) & 7]) ^ (a0 & a[(2 - i) & 7]) ^ (a[(1 - i) & 7] & a[(2 - i) & 7]));
        a[(3 - i) & 7] += x;
        a[(7 - i) & 7] = x + y;
    }
    for (i = 0; i < 8; i++)
        s->h[i] += a[i];
}

static void sha256_start(sha256 *s)
{
    static const uint32_t first[8] = {
@FIRST@
    };
    int i;
    for (i = 0; i < 8; i++)
        s->h[i] = first[i];
    s->bytes = 0;
}

static void sha256_byte(sha256 *s, uint32_t byte)
{
    uint32_t *const w = &s->w[s->bytes / 4 % 16];
    *w = *w << 8 | byte;
    if (++s->bytes % 64 == 0)
        sha256_block(s);
}

/* Whether the digest of all bytes so far is `wanted`. */
static int sha256_is(sha256 *s, const uint32_t wanted[8])
{
    const uint32_t bytes = s->bytes;
    int i;
    sha256_byte(s, 0x80);
    while (s->bytes % 64 != 56)
        sha256_byte(s, 0);
    s->w[14] = bytes >> 29;
    s->w[15] = bytes << 3;
    sha256_block(s);
    for (i = 0; i < 8 && s->h[i] == wanted[i]; i++)
        ;
    return i == 8;
}
