/* Word i of a tensor is a hash of its key and i (the finaliser of SplitMix64: two multiplications for eight
 * bytes). For bf16 each word is four weights, evenly spread about 0; for the quantised types words are the
 * blocks' codes as they are, under a scale that is the same in all blocks. */
#include "cli/random_weights.h"

#include <math.h>
#include <string.h>

static inline uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
}

static inline uint64_t word(uint64_t key, uint64_t i)
{
    return mix(key + i * 0x9E3779B97F4A7C15);
}

uint64_t random_key(uint64_t seed, int tensor)
{
    return word(mix(seed + 1), (uint64_t)tensor);
}

static size_t block_words(enum dtype dtype) /* of random bits */
{
    switch (dtype) {
    case DT_Q8_0:
        return 4;
    case DT_Q4_0:
        return 2;
    case DT_Q4_K:
        return 16;
    default:
        return 1;
    }
}

size_t random_unit_bytes(enum dtype dtype)
{
    return dtype == DT_BF16 ? 8 : (size_t)dtype_info((int)dtype)->bytes;
}

/* --- matrices --- */

/* Weights of variance 1 / cols, four a word: k / 32768 * limit for a 16-bit k. */
static void fill_bf16(const struct random_tensor *t, uint64_t first, uint8_t *out, size_t n)
{
    enum { WORDS = 512 };
    const float step = (float)(sqrt(3.0 / (double)t->cols) / 32768);
    uint64_t words[WORDS];
    int16_t k[4 * WORDS];
    uint16_t w[4 * WORDS];
    for (size_t done = 0; done < n;) {
        size_t bytes = n - done < sizeof words ? n - done : sizeof words, count = (bytes + 7) / 8;
        for (size_t i = 0; i < count; i++)
            words[i] = word(t->key, first + i);
        memcpy(k, words, 8 * count);
        for (size_t i = 0; i < 4 * count; i++) { /* rounded down: as good as any */
            float x = (float)k[i] * step;
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            w[i] = (uint16_t)(bits >> 16);
        }
        memcpy(out + done, w, bytes);
        first += count;
        done += bytes;
    }
}

/* In each of a word's nibbles 0 becomes 8, which stands for 0: the others are even about it. */
static inline uint64_t even_nibbles(uint64_t x)
{
    uint64_t any = x | x >> 1;
    any |= any >> 2;
    return x | (~any & 0x1111111111111111) << 3;
}

/* Codes are 2 bytes of scale, then random words. */
static void fill_simple(const struct random_tensor *t, uint64_t first, uint8_t *out, size_t n)
{
    const bool q4 = t->dtype == DT_Q4_0;
    const size_t words = block_words(t->dtype);
    /* The codes' standard deviation: 0 twice and 1 … 7 each way; or -128 … 127. */
    const double spread = q4 ? sqrt(2 * (1 + 4 + 9 + 16 + 25 + 36 + 49) / 16.0) : sqrt(65535 / 12.0);
    const uint16_t scale = float_to_half((float)(1 / sqrt((double)t->cols) / spread));
    const uint8_t *end = out + n;
    for (uint64_t i = first; out < end; i += words) {
        memcpy(out, &scale, 2);
        out += 2;
        for (size_t k = 0; k < words; k++, out += 8) {
            uint64_t x = word(t->key, i + k);
            if (q4)
                x = even_nibbles(x);
            memcpy(out, &x, 8);
        }
    }
}

/* A weight is d * sc * code - dmin * m. With sc = m = 40 in all of the block's 8 parts and dmin = 7.5 d, it
 * is 40 d (code - 7.5). */
static void fill_q4_k(const struct random_tensor *t, uint64_t first, uint8_t *out, size_t n)
{
    const double d = 1 / sqrt((double)t->cols) / 40 / sqrt(255 / 12.0);
    const uint16_t scale = float_to_half((float)d), least = float_to_half((float)(7.5 * d));
    uint8_t head[16];
    memcpy(head, &scale, 2);
    memcpy(head + 2, &least, 2);
    memset(head + 4, 40 | (40 >> 4) << 6, 8); /* parts 0-3 whole, and the high bits of 4-7 */
    memset(head + 12, (40 & 15) | (40 & 15) << 4, 4);
    const uint8_t *end = out + n;
    for (uint64_t i = first; out < end; i += 16) {
        memcpy(out, head, 16);
        out += 16;
        for (int k = 0; k < 16; k++, out += 8) {
            uint64_t x = word(t->key, i + (uint64_t)k);
            memcpy(out, &x, 8);
        }
    }
}

/* --- vectors --- */

static float small_value(const struct random_tensor *t, uint64_t i)
{
    double u = (double)(word(t->key, i) >> 11) * 0x1p-53; /* 0 … 1 */
    switch (t->kind) {
    case WEIGHTS_NORM:
        return (float)(0.9 + 0.2 * u);
    case WEIGHTS_DECAY:
        return (float)(-1 - 15 * u);
    case WEIGHTS_DT:
        return (float)log(expm1(0.001 * pow(100, u)));
    default:
        return (float)(sqrt(3.0 / (double)t->cols) * (2 * u - 1));
    }
}

void random_weights(const struct random_tensor *t, size_t offset, void *out, size_t n)
{
    uint64_t first = offset / random_unit_bytes(t->dtype) * block_words(t->dtype);
    switch (t->dtype) {
    case DT_BF16:
        fill_bf16(t, first, out, n);
        break;
    case DT_Q8_0:
    case DT_Q4_0:
        fill_simple(t, first, out, n);
        break;
    case DT_Q4_K:
        fill_q4_k(t, first, out, n);
        break;
    default:
        for (size_t i = 0; i < n / sizeof(float); i++)
            ((float *)out)[i] = small_value(t, first + i);
    }
}
