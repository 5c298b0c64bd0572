#include "model/rotary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "file/gguf.h"

void rotary_plain(float theta, int dims, struct rope *r)
{
    int n = dims / 2;
    float *f = mem_alloc((size_t)n * sizeof *f);
    for (int i = 0; i < n; i++)
        f[i] = (float)(1.0 / pow((double)theta, 2.0 * i / dims));
    *r = (struct rope){.inv_freq = f, .n_freq = n, .magnitude = 1.0f};
}

void rotary_free(struct rope *r)
{
    free((void *)r->inv_freq);
    r->inv_freq = NULL;
}

/* A required positive number of config.json's scaling object. */
static int scaling_number(const struct params *p, const json_t *scaling, const char *key, double *out,
                          struct err *e)
{
    const json_t *v = json_object_get(scaling, key);
    if (!json_is_number(v) || !(json_number_value(v) > 0))
        return err_set(e, ERR_INVALID, "%s/config.json: rope scaling needs a positive number \"%s\"",
                       p->file->path, key);
    *out = json_number_value(v);
    return 0;
}

static int scale_llama3(const struct params *p, const json_t *scaling, float *f, int n, struct err *e)
{
    double factor = 1, low = 1, high = 1, context = 1;
    if (scaling_number(p, scaling, "factor", &factor, e) ||
        scaling_number(p, scaling, "low_freq_factor", &low, e) ||
        scaling_number(p, scaling, "high_freq_factor", &high, e) ||
        scaling_number(p, scaling, "original_max_position_embeddings", &context, e))
        return -1;
    if (!(high > low))
        return err_set(e, ERR_INVALID,
                       "%s/config.json: rope scaling: high_freq_factor must be above low_freq_factor",
                       p->file->path);
    for (int i = 0; i < n; i++) {
        double wavelength = 2 * M_PI / f[i];
        double smooth = (context / wavelength - low) / (high - low);
        smooth = smooth < 0 ? 0 : smooth > 1 ? 1 : smooth;
        f[i] = (float)((1 - smooth) * f[i] / factor + smooth * f[i]);
    }
    return 0;
}

/* config.json: "rope_scaling" (or "rope_parameters" in newer files). */
static int scale_hf(const struct params *p, const json_t *scaling, float *f, int n, struct err *e)
{
    const json_t *type = json_object_get(scaling, "rope_type");
    if (!type)
        type = json_object_get(scaling, "type");
    const char *name = type ? json_string_value(type) : "default";
    double factor = 1;
    if (name && strcmp(name, "default") == 0)
        return 0;
    if (name && strcmp(name, "llama3") == 0)
        return scale_llama3(p, scaling, f, n, e);
    if (name && strcmp(name, "linear") == 0) {
        if (scaling_number(p, scaling, "factor", &factor, e))
            return -1;
        for (int i = 0; i < n; i++)
            f[i] = (float)(f[i] / factor);
        return 0;
    }
    return err_set(e, ERR_UNSUPPORTED,
                   "%s/config.json: rope type \"%.60s\" is not supported (default, linear, llama3 are)",
                   p->file->path, name ? name : "?");
}

static int scale_gguf(const struct params *p, float *f, int n, struct err *e)
{
    const char *type;
    if (params_str(p, NULL, "rope.scaling.type", &type, e))
        return -1;
    if (type && strcmp(type, "none") != 0 && strcmp(type, "linear") != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: rope scaling type \"%.60s\" is not supported (none, linear are)", p->file->path,
                       type);
    float factor = 1;
    if (type && strcmp(type, "linear") == 0 &&
        params_float(p, NULL, "rope.scaling.factor", true, 1e-6, 1e6, &factor, e))
        return -1;
    for (int i = 0; i < n; i++)
        f[i] /= factor;

    const struct tensor *t = model_file_tensor(p->file, "rope_freqs.weight");
    if (!t)
        return 0;
    if (t->dtype != DT_F32 || t->n_dims != 1 || t->shape[0] != n)
        return err_set(e, ERR_INVALID, "%s: tensor \"rope_freqs.weight\" must be %d values of type F32",
                       p->file->path, n);
    float *divisor = mem_alloc((size_t)n * sizeof *divisor);
    dtype_to_float(DT_F32, t->data, divisor, n);
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++) {
        if (divisor[i] > 0 && isfinite(divisor[i]))
            f[i] /= divisor[i];
        else
            rc = err_set(e, ERR_INVALID,
                         "%s: tensor \"rope_freqs.weight\": value %d is %g, not a positive number",
                         p->file->path, i, (double)divisor[i]);
    }
    free(divisor);
    return rc;
}

int rotary_read(const struct params *p, int dims, struct rope *r, struct err *e)
{
    float theta = 10000.0f;
    const json_t *scaling = NULL;
    if (p->config) {
        scaling = json_object_get(p->config, "rope_parameters");
        if (!json_is_object(scaling))
            scaling = json_object_get(p->config, "rope_scaling");
        if (json_is_object(json_object_get(scaling, "full_attention")))
            scaling = json_object_get(scaling, "full_attention");
        const json_t *inner = json_object_get(scaling, "rope_theta");
        if (inner && !json_is_number(inner))
            return err_set(e, ERR_INVALID, "%s/config.json: \"rope_theta\" must be a number", p->file->path);
        if (inner)
            theta = (float)json_number_value(inner);
    }
    if (params_float(p, "rope_theta", "rope.freq_base", false, 1, 1e12, &theta, e))
        return -1;
    if (!(theta >= 1 && theta <= 1e12f))
        return err_set(e, ERR_INVALID, "%s: rope theta %g is out of range", p->file->path, (double)theta);
    if (dims < 2 || dims % 2)
        return err_set(e, ERR_INVALID, "%s: rotary dimension %d must be even and positive", p->file->path,
                       dims);
    rotary_plain(theta, dims, r);
    float *f = (float *)r->inv_freq;
    int rc = p->config ? scale_hf(p, scaling, f, r->n_freq, e) : scale_gguf(p, f, r->n_freq, e);
    if (rc)
        rotary_free(r);
    return rc;
}
