#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "file/packed.h"
#include "quant/mix.h"
#include "quant/quantize.h"

/* The tensor's name in the file's world, in buf; NULL if that world has none. */
static const char *full_name(const struct weights *w, struct weight_name name, char *buf, size_t n)
{
    bool hf = w->m->file->kind == MODEL_FILE_HF;
    const char *pattern = hf ? name.hf : name.gguf;
    if (!pattern)
        return NULL;
    if (pattern[0] == '.')
        snprintf(buf, n, "%s%s", hf ? w->hf_layer : w->gguf_layer, pattern);
    else if (hf && strncmp(pattern, "model.", 6) == 0)
        snprintf(buf, n, "%s%s", w->hf_prefix, pattern + 6);
    else
        snprintf(buf, n, "%s", pattern);
    return buf;
}

void weights_layer(struct weights *w, const char *hf, int hf_index, const char *gguf, int gguf_index)
{
    bool model = strncmp(hf, "model.", 6) == 0;
    snprintf(w->hf_layer, sizeof w->hf_layer, "%s%s.%d", model ? w->hf_prefix : "", model ? hf + 6 : hf,
             hf_index);
    snprintf(w->gguf_layer, sizeof w->gguf_layer, "%s.%d", gguf, gguf_index);
}

static void mark_used(struct weights *w, const struct tensor *t)
{
    if (w->n_used == w->cap_used) {
        w->cap_used = w->cap_used ? 2 * w->cap_used : 256;
        w->used = mem_realloc(w->used, (size_t)w->cap_used, sizeof *w->used);
    }
    w->used[w->n_used++] = t;
}

/* Finds the tensor: 0 found, 1 optional and absent, -1 error. */
static int find(struct weights *w, struct weight_name name, int flags, const struct tensor **out,
                struct err *e)
{
    char buf[300];
    const char *full = full_name(w, name, buf, sizeof buf);
    *out = full ? model_file_tensor(w->m->file, full) : NULL;
    if (*out) {
        mark_used(w, *out);
        return 0;
    }
    if (flags & WEIGHT_OPTIONAL)
        return 1;
    if (!full)
        full = name.hf ? name.hf : name.gguf; /* the other world's name, better than none */
    return err_set(e, ERR_NOT_FOUND, "%s: tensor \"%s\" %s", w->m->file->path, full,
                   model_file_why_missing(w->m->file, full));
}

/* Types that hold weights. Whole numbers do not: they are codes, whose scales are another tensor, in a scheme
 * that nobody here knows. */
static bool is_weight_type(enum dtype dtype)
{
    switch (dtype) {
    case DT_I8:
    case DT_I16:
    case DT_I32:
    case DT_I64:
        return false;
    default:
        return true;
    }
}

static int64_t element_count(const struct tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

static void describe_shape(const struct tensor *t, char *buf, size_t n)
{
    size_t at = (size_t)snprintf(buf, n, "[");
    for (int i = 0; i < t->n_dims && at < n; i++)
        at += (size_t)snprintf(buf + at, n - at, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    if (at < n)
        snprintf(buf + at, n - at, "]");
}

static void account(struct weights *w, size_t bytes, int64_t params)
{
    if (!w->load) {
        w->m->weight_bytes += bytes;
        w->m->n_params += params;
        return;
    }
    w->done += bytes;
    if (w->progress)
        w->progress(w->progress_arg, w->done, w->total);
}

/* The type in which a matrix is kept. */
static enum dtype kept_type(const struct weights *w, struct weight_name name, const struct tensor *t)
{
    const struct model *m = w->m;
    if (m->quantization < 0 || !name.gguf || !dtype_info((int)t->dtype)->decodable)
        return t->dtype;
    char full[300];
    snprintf(full, sizeof full, "%s%s", name.gguf[0] == '.' ? w->gguf_layer : "", name.gguf);
    int64_t cols = t->shape[1];
    enum dtype to = mix_choose((enum dtype)m->quantization, full, 2, cols, m->config.n_layers, t->dtype);
    return dtype_row_bytes(to, cols) < dtype_row_bytes(t->dtype, cols) ? to : t->dtype;
}

/* Makes the bytes of a packed tensor; the caller frees. NULL and *e. */
static uint8_t *unpack(struct backend *b, const struct tensor *t, struct err *e)
{
    struct packed_job j = {.p = t->packed, .to = t->dtype};
    j.out = mem_try_alloc(t->bytes, 1);
    j.scratch = mem_try_alloc((size_t)b->ops->threads(b), packed_scratch_bytes(t->packed));
    if (j.out && j.scratch)
        b->ops->parallel(b, packed_tiles, &j, packed_tile_count(t->shape[0]));
    if (!j.out || !j.scratch || j.bad) {
        err_set(e, j.bad ? ERR_INVALID : ERR_NO_MEMORY, "%s",
                j.bad ? "its codes and scales give NaN or infinity: the file is damaged"
                      : "no memory to unpack it");
        free(j.out);
        j.out = NULL;
    }
    free(j.scratch);
    return j.out;
}

/* Makes the matrix of a tensor, whose bytes are `data`, in the type `to`, encoding it first where that is not
 * its own. */
static struct mat *make_mat(const struct weights *w, const struct tensor *t, const void *data, enum dtype to,
                            const int32_t *row_map, struct err *e)
{
    struct backend *b = w->m->b;
    int64_t rows = t->shape[0], cols = t->shape[1];
    struct mat_source src = {to, rows, cols, data, row_map};
    if (to == t->dtype)
        return b->ops->mat_create(b, &src, e);
    struct quantize_job j = {.from = t->dtype, .to = to, .rows = rows, .cols = cols, .data = data};
    struct mat *made = NULL;
    j.out = mem_try_alloc((size_t)rows, dtype_row_bytes(to, cols));
    j.scratch = mem_try_alloc((size_t)b->ops->threads(b), quantize_scratch_floats(cols) * sizeof(float));
    if (!j.out || !j.scratch) {
        err_set(e, ERR_NO_MEMORY, "no memory to encode it");
        goto done;
    }
    b->ops->parallel(b, quantize_tiles, &j, quantize_tile_count(rows));
    if (j.bad_row) {
        err_set(e, ERR_INVALID,
                "row %lld holds NaN or infinity, which no quantised type can: the file is damaged",
                (long long)(j.bad_row - 1));
        goto done;
    }
    src.data = j.out;
    made = b->ops->mat_create(b, &src, e);
done:
    free(j.out);
    free(j.scratch);
    return made;
}

int weights_mat(struct weights *w, struct weight_name name, int flags, int64_t rows, int64_t cols,
                const int32_t *row_map, struct mat **out, struct err *e)
{
    struct model *m = w->m;
    const struct tensor *t;
    int rc = find(w, name, flags, &t, e);
    if (rc)
        return rc < 0 ? -1 : 0;
    if (t->n_dims != 2 || t->shape[0] != rows || t->shape[1] != cols) {
        char shape[120];
        describe_shape(t, shape, sizeof shape);
        return err_set(e, ERR_INVALID,
                       "%s: tensor \"%s\" has shape %s, but the configuration asks for [%lld, %lld]",
                       m->file->path, t->name, shape, (long long)rows, (long long)cols);
    }
    if (!is_weight_type(t->dtype) || !m->b->ops->mat_supported(t->dtype))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: tensor \"%s\" has type %s, which this build cannot compute with", m->file->path,
                       t->name, dtype_info(t->dtype)->name);
    enum dtype kept = kept_type(w, name, t);
    size_t bytes = m->b->ops->mat_bytes(kept, rows, cols);
    if (w->load) {
        uint8_t *unpacked = t->packed ? unpack(m->b, t, e) : NULL;
        if (unpacked || !t->packed)
            *out = make_mat(w, t, t->packed ? unpacked : t->data, kept, row_map, e);
        free(unpacked);
        if (!*out)
            return err_prefix(e, "%s: tensor \"%s\"", m->file->path, t->name);
        if (m->n_mats == m->cap_mats) {
            m->cap_mats = m->cap_mats ? 2 * m->cap_mats : 256;
            m->mats = mem_realloc(m->mats, (size_t)m->cap_mats, sizeof *m->mats);
        }
        m->mats[m->n_mats++] = (struct owned_mat){*out, mem_strdup(t->name), !(flags & WEIGHT_LOOKUP)};
        if (!(flags & WEIGHT_LOOKUP))
            m->stream_bytes += (*out)->bytes;
        model_file_drop(m->file, t); /* never two copies in memory */
    }
    account(w, bytes, rows * cols);
    return 0;
}

/* Whether the small tensor has n elements of a type that can be decoded. */
static int check_vec(const struct weights *w, const struct tensor *t, int64_t n, struct err *e)
{
    if (element_count(t) != n) {
        char shape[120];
        describe_shape(t, shape, sizeof shape);
        return err_set(e, ERR_INVALID,
                       "%s: tensor \"%s\" has shape %s, but the configuration asks for %lld elements",
                       w->m->file->path, t->name, shape, (long long)n);
    }
    if (t->packed)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor \"%s\" is quantised, which only matrices may be here",
                       w->m->file->path, t->name);
    if (!is_weight_type(t->dtype) || !dtype_info(t->dtype)->decodable || n % dtype_info(t->dtype)->block)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor \"%s\" has type %s, which cannot be read here",
                       w->m->file->path, t->name, dtype_info(t->dtype)->name);
    return 0;
}

int weights_vec(struct weights *w, struct weight_name name, int flags, int64_t n, float plus,
                const int32_t *row_map, float **out, struct err *e)
{
    struct model *m = w->m;
    const struct tensor *t;
    int rc = find(w, name, flags, &t, e);
    if (rc)
        return rc < 0 ? -1 : 0;
    if (check_vec(w, t, n, e))
        return -1;
    if (!w->load) {
        account(w, (size_t)n * sizeof(float), n);
        return 0;
    }
    float *raw = mem_alloc((size_t)n * sizeof *raw), *host = mem_alloc((size_t)n * sizeof *host);
    dtype_to_float(t->dtype, t->data, raw, n);
    for (int64_t i = 0; i < n; i++) {
        float x = raw[row_map ? row_map[i] : i];
        host[i] = flags & WEIGHT_NEG_EXP ? -expf(x) : x + plus;
    }
    *out = model_buffer(m, (size_t)n * sizeof(float), e);
    if (*out)
        m->b->ops->write(m->b, *out, host, (size_t)n * sizeof(float));
    free(raw);
    free(host);
    if (!*out)
        return -1;
    account(w, (size_t)n * sizeof(float), n);
    return 0;
}

static int by_address(const void *a, const void *b)
{
    const struct tensor *x = *(const struct tensor *const *)a, *y = *(const struct tensor *const *)b;
    return (x > y) - (x < y);
}

void weights_warn_unused(const struct weights *w, const char *const *ignored)
{
    const struct model_file *f = w->m->file;
    const char *first = NULL;
    int count = 0;
    qsort(w->used, (size_t)w->n_used, sizeof *w->used, by_address);
    for (int i = 0; i < f->n_tensors; i++) {
        const struct tensor *t = &f->tensors[i];
        bool skip = bsearch(&t, w->used, (size_t)w->n_used, sizeof *w->used, by_address) != NULL;
        for (int k = 0; ignored && ignored[k]; k++)
            skip |= strncmp(t->name, ignored[k], strlen(ignored[k])) == 0;
        if (!skip && count++ == 0)
            first = t->name;
    }
    if (count)
        log_warn("%s: %d tensor%s this architecture does not use, \"%s\" among them: is it the model it says "
                 "it is?",
                 f->path, count, count == 1 ? "" : "s", first);
}
