#include "file/imatrix.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "file/gguf.h"
#include "file/internal.h"

struct entry {
    char *name;
    int64_t cols;
    float *values; /* [cols] */
};

struct imatrix {
    char *path;
    struct entry *entries; /* [n], sorted by name */
    int n, cap;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

/* Takes over `values`. */
static int add(struct imatrix *im, const char *name, size_t len, int64_t cols, float *values, struct err *e)
{
    for (int64_t i = 0; i < cols; i++) {
        if (!isfinite(values[i]) || values[i] < 0) {
            free(values);
            return err_set(e, ERR_INVALID, "%s: value %lld of \"%.*s\" is not a sum of squares", im->path,
                           (long long)i, (int)(len < 200 ? len : 200), name);
        }
    }
    if (im->n == im->cap) {
        im->cap = im->cap ? 2 * im->cap : 256;
        im->entries = mem_realloc(im->entries, (size_t)im->cap, sizeof *im->entries);
    }
    im->entries[im->n++] = (struct entry){mem_strndup(name, len), cols, values};
    return 0;
}

/* GGUF: in_sum2 [n_mats, cols] over counts [n_mats]; of several matrices (experts) the sums are added up. */
static int add_gguf(struct imatrix *im, const struct model_file *f, const struct tensor *t, struct err *e)
{
    static const char tail[] = ".in_sum2";
    size_t len = strlen(t->name) - (sizeof tail - 1);
    char name[300];
    if (len >= sizeof name - 10)
        return err_set(e, ERR_INVALID, "%s: tensor \"%.60s…\" has too long a name", im->path, t->name);
    memcpy(name, t->name, len);
    memcpy(name + len, ".counts", 8);
    const struct tensor *counts = model_file_tensor(f, name);
    int64_t cols = t->shape[t->n_dims > 0 ? t->n_dims - 1 : 0], mats = 1, n_counts = 1;
    for (int i = 0; i + 1 < t->n_dims; i++)
        mats *= t->shape[i];
    for (int i = 0; counts && i < counts->n_dims; i++)
        n_counts *= counts->shape[i];
    if (t->dtype != DT_F32 || !counts || counts->dtype != DT_F32 || n_counts != mats)
        return err_set(e, ERR_INVALID, "%s: tensor \"%s\" is not F32 with one count a matrix beside it",
                       im->path, t->name);
    float *sums = mem_zalloc((size_t)cols, sizeof *sums), total = 0;
    for (int64_t m = 0; m < mats; m++) {
        float c, v;
        memcpy(&c, (const uint8_t *)counts->data + (size_t)m * sizeof c, sizeof c);
        total += c;
        for (int64_t k = 0; k < cols; k++) {
            memcpy(&v, (const uint8_t *)t->data + (size_t)(m * cols + k) * sizeof v, sizeof v);
            sums[k] += v;
        }
    }
    for (int64_t k = 0; k < cols; k++)
        sums[k] = total > 0 ? sums[k] / total : 0;
    return add(im, name, len, cols, sums, e);
}

static int read_gguf(struct imatrix *im, struct err *e)
{
    static const char tail[] = ".in_sum2";
    struct model_file *f = model_file_open(im->path, e);
    if (!f)
        return -1;
    int rc = 0;
    for (int i = 0; i < f->n_tensors && rc == 0; i++) {
        size_t len = strlen(f->tensors[i].name);
        if (len > sizeof tail - 1 && strcmp(f->tensors[i].name + len - (sizeof tail - 1), tail) == 0)
            rc = add_gguf(im, f, &f->tensors[i], e);
    }
    model_file_close(f);
    return rc;
}

struct reader {
    const uint8_t *at, *end;
};

static bool read_i32(struct reader *r, int32_t *out)
{
    if (r->end - r->at < 4)
        return false;
    memcpy(out, r->at, 4);
    r->at += 4;
    return true;
}

/* The older format: a count, then of each matrix its name, how often it was met, and its values, each behind
 * its length; int32 and float32, little-endian. */
static int read_old(struct imatrix *im, struct reader r, struct err *e)
{
    int32_t n, len, calls, cols;
    if (!read_i32(&r, &n) || n < 1 || n > 1 << 20)
        return err_set(e, ERR_INVALID, "%s: is neither GGUF nor an importance matrix of the older format",
                       im->path);
    for (int i = 0; i < n; i++) {
        if (!read_i32(&r, &len) || len < 1 || len > 1 << 16 || r.end - r.at < len)
            return err_set(e, ERR_INVALID, "%s: entry %d of %d has a broken name; it is cut short or damaged",
                           im->path, i, n);
        const char *name = (const char *)r.at;
        r.at += len;
        if (!name_is_valid(name, (size_t)len))
            return err_set(e, ERR_INVALID, "%s: entry %d has a name that is no name", im->path, i);
        if (!read_i32(&r, &calls) || !read_i32(&r, &cols) || cols < 1 || (r.end - r.at) / 4 < cols)
            return err_set(e, ERR_INVALID, "%s: \"%.*s\" has a broken length; it is cut short or damaged",
                           im->path, len < 200 ? len : 200, name);
        float *values = mem_alloc((size_t)cols * sizeof *values);
        memcpy(values, r.at, (size_t)cols * sizeof *values);
        r.at += (size_t)cols * 4;
        if (add(im, name, (size_t)len, cols, values, e))
            return -1;
    }
    return 0;
}

struct imatrix *imatrix_open(const char *path, struct err *e)
{
    struct imatrix *im = mem_zalloc(1, sizeof *im);
    struct mapping m;
    im->path = mem_strdup(path);
    if (mapping_open(&m, path, e)) {
        imatrix_close(im);
        return NULL;
    }
    bool is_gguf = m.size >= 4 && memcmp(m.data, "GGUF", 4) == 0;
    int rc = is_gguf ? read_gguf(im, e) : read_old(im, (struct reader){m.data, m.data + m.size}, e);
    mapping_close(&m);
    if (rc == 0 && im->n == 0)
        rc = err_set(e, ERR_INVALID, "%s: holds no importance (no tensor NAME.in_sum2)", path);
    if (rc) {
        imatrix_close(im);
        return NULL;
    }
    qsort(im->entries, (size_t)im->n, sizeof *im->entries, by_name);
    return im;
}

void imatrix_close(struct imatrix *im)
{
    if (!im)
        return;
    for (int i = 0; i < im->n; i++) {
        free(im->entries[i].name);
        free(im->entries[i].values);
    }
    free(im->entries);
    free(im->path);
    free(im);
}

int imatrix_find(const struct imatrix *im, const char *name, int64_t cols, const float **out, struct err *e)
{
    struct entry key = {.name = (char *)name};
    const struct entry *found = bsearch(&key, im->entries, (size_t)im->n, sizeof *im->entries, by_name);
    *out = NULL;
    if (!found)
        return 0;
    if (found->cols != cols)
        return err_set(e, ERR_INVALID, "%s: \"%s\" has %lld values, but the model's matrix has %lld columns",
                       im->path, name, (long long)found->cols, (long long)cols);
    *out = found->values;
    return 0;
}
