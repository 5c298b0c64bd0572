/* Encoding Q4_K, Q5_K and Q6_K (layouts: dequant_k.c). Groups are fitted each for itself first; their scales
 * then become small whole multiples of one fp16 number. Rounding them moves everything, so the shared numbers
 * and the groups' multiples are improved in turn, each by least squares over the codes that the others give.
 */
#include <stdbool.h>

#include "quant/encode.h"

static int clamp_code(float x, int lo, int hi)
{
    return !(x > (float)lo) ? lo : x >= (float)hi ? hi : (int)round_near(x); /* NaN: lo */
}

/* The groups' scales as the decoder will have them. */
static void set_groups(const struct block_format *f, struct block_code *c)
{
    float d = half_to_float(c->d), dmin = half_to_float(c->dmin);
    for (int g = 0; g < f->block / f->group; g++) {
        c->scale[g] = d * (float)c->scale_code[g];
        c->min[g] = -(dmin * (float)c->min_code[g]);
    }
}

/* --- Q4_K, Q5_K: scale and minimum of 32 weights, six bits each --------------------------------------------
 */

enum { MOST = 63 };

/* Tries the multiples around (s, m) and takes the best. */
static void choose_pair(const struct block_format *f, struct block_code *c, int g, const float *x,
                        const float *w, float s, float m, int reach)
{
    float d = half_to_float(c->d), dmin = half_to_float(c->dmin), best = INFINITY;
    int s0 = d > 0 ? clamp_code(s / d, 0, MOST) : 0, m0 = dmin > 0 ? clamp_code(-m / dmin, 0, MOST) : 0;
    c->scale_code[g] = (int16_t)s0; /* stand where all errors overflow */
    c->min_code[g] = (int16_t)m0;
    for (int ds = -reach; ds <= reach; ds++) {
        for (int dm = -reach; dm <= reach; dm++) {
            int sc = s0 + ds, mc = m0 + dm;
            if (sc < 0 || sc > MOST || mc < 0 || mc > MOST)
                continue;
            float e = fit_error(x, w, 32, 0, f->hi, d * (float)sc, -(dmin * (float)mc));
            if (e < best) {
                best = e;
                c->scale_code[g] = (int16_t)sc;
                c->min_code[g] = (int16_t)mc;
            }
        }
    }
    c->scale[g] = d * (float)c->scale_code[g];
    c->min[g] = -(dmin * (float)c->min_code[g]);
}

static void refit_affine(const struct block_format *f, struct block_code *c, int g, const float *x,
                         const float *w)
{
    float s, m;
    search_scale_min(x, w, 32, f->hi, true, &s, &m);
    choose_pair(f, c, g, x, w, s, m, 1);
}

/* d and dmin that are best for the codes nearest now. */
static void solve_shared(const struct block_format *f, struct block_code *c, const float *x, const float *w)
{
    double aa = 0, ab = 0, bb = 0, xa = 0, xb = 0; /* of a = multiple * code, b = -minimum's multiple */
    for (int g = 0; g < 8; g++) {
        for (int j = g * 32; j < g * 32 + 32; j++) {
            int q = nearest_code(x[j], c->scale[g], c->min[g], 0, f->hi);
            double a = c->scale_code[g] * q, b = -c->min_code[g], wj = (double)w[j];
            aa += wj * a * a;
            ab += wj * a * b;
            bb += wj * b * b;
            xa += wj * a * (double)x[j];
            xb += wj * b * (double)x[j];
        }
    }
    double det = aa * bb - ab * ab, d = 0, dmin = 0;
    if (det > 1e-9 * aa * bb) {
        d = (xa * bb - xb * ab) / det;
        dmin = (xb * aa - xa * ab) / det;
    }
    if (d <= 0 || dmin < 0) {
        if (!(aa > 0) || xa <= 0)
            return;
        d = xa / aa;
        dmin = 0;
    }
    c->d = to_half((float)d);
    c->dmin = to_half((float)dmin);
}

static float block_error(const struct block_format *f, const struct block_code *c, const float *x,
                         const float *w)
{
    float e = 0;
    for (int g = 0; g < f->block / f->group; g++)
        e += fit_error(x + g * f->group, w + g * f->group, f->group, f->lo, f->hi, c->scale[g], c->min[g]);
    return e;
}

static void fit_affine(const struct block_format *f, struct block_code *c, const float *x, const float *w)
{
    float s[8], m[8], most_s = 0, most_m = 0;
    for (int g = 0; g < 8; g++) {
        search_scale_min(x + g * 32, w + g * 32, 32, f->hi, true, &s[g], &m[g]);
        most_s = s[g] > most_s ? s[g] : most_s;
        most_m = -m[g] > most_m ? -m[g] : most_m;
    }
    c->d = to_half(most_s / MOST);
    c->dmin = to_half(most_m / MOST);
    for (int g = 0; g < 8; g++)
        choose_pair(f, c, g, x + g * 32, w + g * 32, s[g], m[g], 1);
    float error = block_error(f, c, x, w);
    for (int round = 0; round < 3; round++) {
        struct block_code before = *c;
        solve_shared(f, c, x, w);
        for (int g = 0; g < 8; g++)
            choose_pair(f, c, g, x + g * 32, w + g * 32, s[g], m[g], 1);
        float now = block_error(f, c, x, w);
        if (!(now < error)) {
            *c = before;
            break;
        }
        error = now;
    }
}

/* Six-bit pairs in 12 bytes: the inverse of dequant_k.c's scale_and_min. */
static void store_pairs(const struct block_code *c, uint8_t *out)
{
    memset(out, 0, 12);
    for (int g = 0; g < 4; g++) {
        out[g] = (uint8_t)(c->scale_code[g] | (c->scale_code[g + 4] >> 4) << 6);
        out[g + 4] = (uint8_t)(c->min_code[g] | (c->min_code[g + 4] >> 4) << 6);
        out[g + 8] = (uint8_t)((c->scale_code[g + 4] & 15) | (c->min_code[g + 4] & 15) << 4);
    }
}

static void store_head(const struct block_code *c, uint8_t *out)
{
    store_u16(out, c->d);
    store_u16(out + 2, c->dmin);
    store_pairs(c, out + 4);
}

static void store_low_nibbles(const int16_t *codes, uint8_t *out)
{
    for (int pair = 0; pair < 4; pair++)
        for (int j = 0; j < 32; j++)
            out[pair * 32 + j] =
                (uint8_t)((codes[pair * 64 + j] & 15) | (codes[pair * 64 + 32 + j] & 15) << 4);
}

static void store_q4_k(const struct block_code *c, uint8_t *out)
{
    store_head(c, out);
    store_low_nibbles(c->codes, out + 16);
}

static void store_q5_k(const struct block_code *c, uint8_t *out)
{
    store_head(c, out);
    for (int j = 0; j < 32; j++) {
        int high = 0;
        for (int g = 0; g < 8; g++)
            high |= (c->codes[g * 32 + j] >> 4 & 1) << g;
        out[16 + j] = (uint8_t)high;
    }
    store_low_nibbles(c->codes, out + 48);
}

/* --- Q6_K: a signed scale of eight bits for 16 weights -----------------------------------------------------
 */

static void choose_scale(const struct block_format *f, struct block_code *c, int g, const float *x,
                         const float *w, float s)
{
    float d = half_to_float(c->d), best = INFINITY;
    int s0 = d != 0 ? clamp_code(s / d, -128, 127) : 0;
    c->scale_code[g] = (int16_t)s0; /* stands where all errors overflow */
    for (int sc = s0 - 1; sc <= s0 + 1; sc++) {
        if (sc < -128 || sc > 127)
            continue;
        float e = fit_error(x, w, 16, f->lo, f->hi, d * (float)sc, 0);
        if (e < best) {
            best = e;
            c->scale_code[g] = (int16_t)sc;
        }
    }
    c->scale[g] = d * (float)c->scale_code[g];
    c->min[g] = 0;
}

static void refit_q6_k(const struct block_format *f, struct block_code *c, int g, const float *x,
                       const float *w)
{
    choose_scale(f, c, g, x, w, search_scale(x, w, 16, f->lo, f->hi));
}

static void fit_q6_k(const struct block_format *f, struct block_code *c, const float *x, const float *w)
{
    float s[16], peak = 0;
    for (int g = 0; g < 16; g++) {
        s[g] = search_scale(x + g * 16, w + g * 16, 16, f->lo, f->hi);
        if (fabsf(s[g]) > fabsf(peak))
            peak = s[g];
    }
    c->d = to_half(peak / -128);
    c->dmin = 0;
    memset(c->min_code, 0, sizeof c->min_code);
    for (int g = 0; g < 16; g++)
        choose_scale(f, c, g, x + g * 16, w + g * 16, s[g]);
    float error = block_error(f, c, x, w);
    for (int round = 0; round < 2; round++) {
        struct block_code before = *c;
        double aa = 0, xa = 0;
        for (int j = 0; j < 256; j++) {
            int g = j / 16;
            double a = c->scale_code[g] * nearest_code(x[j], c->scale[g], 0, f->lo, f->hi);
            aa += (double)w[j] * a * a;
            xa += (double)w[j] * a * (double)x[j];
        }
        if (!(aa > 0))
            break;
        c->d = to_half((float)(xa / aa));
        set_groups(f, c);
        for (int g = 0; g < 16; g++)
            choose_scale(f, c, g, x + g * 16, w + g * 16, s[g]);
        float now = block_error(f, c, x, w);
        if (!(now < error)) {
            *c = before;
            break;
        }
        error = now;
    }
}

static void store_q6_k(const struct block_code *c, uint8_t *out)
{
    memset(out, 0, 192);
    for (int j = 0; j < 256; j++) {
        int q = c->codes[j] + 32, half = j / 128, at = j % 128;
        out[half * 64 + at % 64] |= (uint8_t)((q & 15) << at / 64 * 4);
        out[128 + half * 32 + at % 32] |= (uint8_t)((q >> 4) << at / 32 * 2);
    }
    for (int g = 0; g < 16; g++)
        out[192 + g] = (uint8_t)(int8_t)c->scale_code[g];
    store_u16(out + 208, c->d);
}

const struct block_format format_q4_k = {DT_Q4_K, 256, 32, 0, 15, fit_affine, refit_affine, store_q4_k};
const struct block_format format_q5_k = {DT_Q5_K, 256, 32, 0, 31, fit_affine, refit_affine, store_q5_k};
const struct block_format format_q6_k = {DT_Q6_K, 256, 16, -32, 31, fit_q6_k, refit_q6_k, store_q6_k};
