/* Quantised checkpoints: what config.json's quantization_config says, and which tensors make one matrix.
 *
 *   compressed-tensors  X.weight_packed or X.weight (int8, FP8), X.weight_scale, X.weight_zero_point,
 *                       X.weight_shape, X.weight_g_idx; several schemes may be used in one checkpoint
 *   gptq, awq           X.qweight, X.qzeros, X.scales, X.g_idx
 *   fp8                 X.weight, X.weight_scale_inv or X.weight_scale
 *
 * all become X.weight. Modules that were left as they are have a plain X.weight already. What the config says
 * of activations is not followed: they are this engine's own. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "file/internal.h"
#include "file/packed.h"

enum method { COMPRESSED_TENSORS, GPTQ, AWQ, FP8 };

/* One way in which matrices may be quantised. */
struct scheme {
    bool fp8;
    int bits;
    int64_t group_rows, group_cols; /* that share a scale; 0: all of them */
    bool zeros;                     /* must be there */
};

enum { MAX_SCHEMES = 16 };

struct reader {
    enum method method;
    struct scheme schemes[MAX_SCHEMES];
    int n_schemes;
    int zero_plus; /* GPTQ */
    struct tensor_list *l;
    bool *gone; /* [l->n]: is part of a matrix */
};

/* ---- quantization_config --------------------------------------------------------------------------------
 */

static const char supported[] =
    "supported are compressed-tensors, gptq and awq of 4 bits, compressed-tensors and gptq of 8, and fp8 "
    "(e4m3)";

/* A whole number of an object; `fallback` if it is absent or null; INT64_MIN if it is something else. */
static int64_t get_int(const json_t *object, const char *key, int64_t fallback)
{
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v))
        return fallback;
    return json_is_integer(v) ? json_integer_value(v) : INT64_MIN;
}

static const char *get_str(const json_t *object, const char *key, const char *fallback)
{
    const json_t *v = json_object_get(object, key);
    return !v || json_is_null(v) ? fallback : json_is_string(v) ? json_string_value(v) : "?";
}

static bool is_one_of(const char *s, const char *const *list)
{
    while (*list && strcmp(s, *list) != 0)
        list++;
    return *list != NULL;
}

/* A group of columns must be whole blocks of 32, as the types that matrices become have them; -1: a row. */
static int check_group(int64_t group, const char *key, struct scheme *s, struct err *e)
{
    if (group != -1 && (group < 32 || group % 32 || group > 1 << 20))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s %lld is not supported (multiples of 32 are, and -1: whole rows)", key,
                       (long long)group);
    s->group_cols = group == -1 ? 0 : group;
    s->group_rows = 1;
    return 0;
}

static int check_block(const json_t *block, const char *key, struct scheme *s, struct err *e)
{
    const json_t *r = json_array_get(block, 0), *c = json_array_get(block, 1);
    if (json_array_size(block) != 2 || !json_is_integer(r) || !json_is_integer(c) ||
        json_integer_value(r) < 1 || json_integer_value(r) > 1 << 20 || json_integer_value(c) < 1 ||
        json_integer_value(c) > 1 << 20)
        return err_set(e, ERR_UNSUPPORTED, "%s must be two sizes, [rows, columns]", key);
    s->group_rows = json_integer_value(r);
    s->group_cols = json_integer_value(c);
    return 0;
}

/* One of compressed-tensors' config_groups. */
static int read_scheme(const json_t *group, struct scheme *s, struct err *e)
{
    const json_t *w = json_object_get(group, "weights");
    int64_t bits = get_int(w, "num_bits", INT64_MIN);
    const char *type = get_str(w, "type", "int"), *strategy = get_str(w, "strategy", NULL);
    int64_t size = get_int(w, "group_size", -1);
    *s = (struct scheme){.fp8 = strcmp(type, "float") == 0,
                         .bits = (int)bits,
                         .zeros = json_is_false(json_object_get(w, "symmetric"))};
    if (!json_is_object(w))
        return err_set(e, ERR_UNSUPPORTED, "it has no \"weights\"");
    if (s->fp8 ? bits != 8 : strcmp(type, "int") != 0 || (bits != 4 && bits != 8))
        return err_set(e, ERR_UNSUPPORTED, "weights of type \"%.20s\" with num_bits %lld are not supported",
                       type, (long long)(bits == INT64_MIN ? 0 : bits));
    if (!strategy)
        strategy = size > 0 ? "group" : "tensor";
    if (strcmp(strategy, "tensor") == 0)
        return 0;
    if (strcmp(strategy, "channel") == 0)
        return check_group(-1, "", s, e);
    if (strcmp(strategy, "group") == 0)
        return check_group(size, "group_size", s, e);
    if (strcmp(strategy, "block") == 0 && s->fp8)
        return check_block(json_object_get(w, "block_structure"), "block_structure", s, e);
    return err_set(e, ERR_UNSUPPORTED, "strategy \"%.20s\" is not supported for such weights", strategy);
}

static int read_compressed(const json_t *q, struct reader *r, struct err *e)
{
    static const char *const formats[] = {"pack-quantized",  "int-quantized",   "float-quantized",
                                          "naive-quantized", "mixed-precision", NULL};
    static const char *const dense[] = {"dense", "?", NULL};
    const char *format = get_str(q, "format", "pack-quantized"), *name;
    const json_t *sparsity = json_object_get(q, "sparsity_config"),
                 *transform = json_object_get(q, "transform_config");
    json_t *group;
    if (!is_one_of(format, formats))
        return err_set(e, ERR_UNSUPPORTED, "format \"%.40s\" is not supported", format);
    if (json_object_size(sparsity) && !is_one_of(get_str(sparsity, "format", "dense"), dense))
        return err_set(e, ERR_UNSUPPORTED, "sparsity_config: format \"%.40s\" is not supported",
                       get_str(sparsity, "format", "dense"));
    if (json_object_size(json_object_get(transform, "config_groups")))
        return err_set(e, ERR_UNSUPPORTED, "transform_config is not supported");
    json_object_foreach(json_object_get(q, "config_groups"), name, group)
    {
        const char *own = get_str(group, "format", format);
        if (r->n_schemes == MAX_SCHEMES || !is_one_of(own, formats))
            return err_set(e, ERR_UNSUPPORTED, "config_groups: %.40s: %s is not supported", name,
                           r->n_schemes == MAX_SCHEMES ? "so many of them" : "its format");
        if (read_scheme(group, &r->schemes[r->n_schemes], e))
            return err_prefix(e, "config_groups: %.40s", name);
        r->n_schemes++;
    }
    return r->n_schemes ? 0 : err_set(e, ERR_UNSUPPORTED, "there are no config_groups");
}

static int read_gptq_awq(const json_t *q, bool awq, struct reader *r, struct err *e)
{
    int64_t bits = get_int(q, awq && !json_object_get(q, "bits") ? "w_bit" : "bits", INT64_MIN);
    int64_t group = get_int(q, awq && !json_object_get(q, "group_size") ? "q_group_size" : "group_size", -1);
    const char *form = awq ? get_str(q, "version", "gemm") : get_str(q, "checkpoint_format", "gptq");
    static const char *const awq_forms[] = {"gemm", "GEMM", NULL};
    static const char *const gptq_forms[] = {"gptq", "gptq_v2", NULL};
    if (bits != 4 && (awq || bits != 8))
        return err_set(e, ERR_UNSUPPORTED, "bits %lld is not supported (4 is%s)",
                       (long long)(bits == INT64_MIN ? 0 : bits), awq ? "" : ", and 8");
    if (!is_one_of(form, awq ? awq_forms : gptq_forms))
        return err_set(e, ERR_UNSUPPORTED, "%s \"%.40s\" is not supported (%s)",
                       awq ? "version" : "checkpoint_format", form,
                       awq ? "\"gemm\" is" : "\"gptq\" and \"gptq_v2\" are");
    r->schemes[0] = (struct scheme){.bits = (int)bits, .zeros = true};
    r->n_schemes = 1;
    r->zero_plus = !awq && strcmp(form, "gptq") == 0;
    return check_group(group, "group_size", &r->schemes[0], e);
}

static int read_fp8(const json_t *q, struct reader *r, struct err *e)
{
    const char *form = get_str(q, "fmt", "e4m3");
    const json_t *block = json_object_get(q, "weight_block_size");
    if (strcmp(form, "e4m3") != 0 && strcmp(form, "float8_e4m3fn") != 0)
        return err_set(e, ERR_UNSUPPORTED, "fmt \"%.40s\" is not supported (e4m3 is)", form);
    for (int i = 0; i < 3; i++)
        r->schemes[i] = (struct scheme){.fp8 = true, .bits = 8, .group_rows = i == 1};
    r->n_schemes = 2; /* one scale; one a row */
    if (!block || json_is_null(block))
        return 0;
    r->n_schemes = 1;
    return check_block(block, "weight_block_size", &r->schemes[0], e);
}

static int read_config(const json_t *q, struct reader *r, struct err *e)
{
    static const char *const methods[] = {
        [COMPRESSED_TENSORS] = "compressed-tensors", [GPTQ] = "gptq", [AWQ] = "awq", [FP8] = "fp8"};
    const char *method = get_str(q, "quant_method", "?");
    int rc = -1, m = 0;
    while (m <= FP8 && strcmp(method, methods[m]) != 0)
        m++;
    r->method = (enum method)m;
    if (m > FP8)
        return err_set(e, ERR_UNSUPPORTED, "quant_method \"%.40s\" is not supported", method);
    if (m == COMPRESSED_TENSORS)
        rc = read_compressed(q, r, e);
    else
        rc = m == FP8 ? read_fp8(q, r, e) : read_gptq_awq(q, m == AWQ, r, e);
    return rc ? err_prefix(e, "quant_method \"%s\"", method) : 0;
}

/* "compressed-tensors (pack-quantized), 4 bits, groups of 128 with zero points" */
static char *describe(const json_t *q, const struct reader *r)
{
    struct str s = {0};
    str_adds(&s, get_str(q, "quant_method", "?"));
    if (json_object_get(q, "format"))
        str_addf(&s, " (%s)", get_str(q, "format", ""));
    for (int i = 0; i < r->n_schemes; i++) {
        const struct scheme *c = &r->schemes[i];
        str_addf(&s, "%s%s", i ? " or " : ", ", c->fp8 ? "e4m3" : c->bits == 4 ? "4 bits" : "8 bits");
        if (c->group_rows > 1)
            str_addf(&s, ", blocks of %lldx%lld", (long long)c->group_rows, (long long)c->group_cols);
        else if (c->group_cols)
            str_addf(&s, ", groups of %lld", (long long)c->group_cols);
        else
            str_adds(&s, c->group_rows ? ", a scale a row" : ", one scale");
        if (c->zeros)
            str_adds(&s, " with zero points");
    }
    return str_take(&s);
}

/* ---- Matrices -------------------------------------------------------------------------------------------
 */

/* The module's tensor X + suffix, NULL if there is none; it is part of the matrix from now on. */
static const struct tensor *take(struct reader *r, const char *module, int len, const char *suffix)
{
    struct str name = {0};
    str_addf(&name, "%.*s%s", len, module, suffix);
    const struct tensor *t = tensor_list_find(r->l, str_text(&name));
    str_free(&name);
    if (t)
        r->gone[t - r->l->tensors] = true;
    return t;
}

static int64_t count_of(const struct tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

/* Is t a matrix [rows, cols], or the same number of elements without the dimension of 1? */
static bool is_grid(const struct tensor *t, int64_t rows, int64_t cols)
{
    if (t->n_dims == 2)
        return t->shape[0] == rows && t->shape[1] == cols;
    return t->n_dims < 2 && (rows == 1 || cols == 1) && count_of(t) == rows * cols;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* The shape of t, which is not the one that is needed. */
static int wrong_shape(const char *what, const struct tensor *t, int64_t rows, int64_t cols, struct err *e)
{
    struct str shape = {0};
    for (int i = 0; i < t->n_dims; i++)
        str_addf(&shape, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    err_set(e, ERR_INVALID,
            "cannot be read: its %s %s have type %s and shape [%s], but the codes and "
            "quantization_config ask for [%lld, %lld]",
            what, t->name, dtype_info((int)t->dtype)->name, str_text(&shape), (long long)rows,
            (long long)cols);
    str_free(&shape);
    return -1;
}

/* The two whole numbers of X.weight_shape. */
static bool get_shape(const struct tensor *t, int64_t out[2])
{
    for (int i = 0; i < 2; i++) {
        int32_t narrow;
        if (!t || count_of(t) != 2 || (t->dtype != DT_I64 && t->dtype != DT_I32))
            return false;
        if (t->dtype == DT_I64) {
            memcpy(&out[i], (const uint8_t *)t->data + 8 * i, 8);
        } else {
            memcpy(&narrow, (const uint8_t *)t->data + 4 * i, 4);
            out[i] = narrow;
        }
    }
    return true;
}

/* bits, rows and cols of p, from the shape of the codes. */
static int read_codes(const struct reader *r, struct packed *p, const struct tensor *codes,
                      const struct tensor *shape, struct err *e)
{
    int64_t a = codes->shape[0], b = codes->shape[1], full[2];
    bool words = p->layout <= PACKED_AWQ, known = get_shape(shape, full);
    if (codes->n_dims != 2 || a > 1 << 30 || b > 1 << 30 || codes->dtype != (words ? DT_I32 : DT_I8))
        return err_set(e, ERR_INVALID, "cannot be read: its codes %s are not a matrix of %s", codes->name,
                       words ? "32-bit words" : "bytes");
    p->bits = words ? r->schemes[0].bits : 8;
    if (p->layout == PACKED_ALONG_ROWS && known) /* there may be 4 and 8 bits in one checkpoint */
        p->bits = full[1] > 4 * b ? 4 : 8;
    int per_word = 32 / p->bits;
    p->rows = p->layout == PACKED_GPTQ ? b : p->layout == PACKED_AWQ ? b * 8 : a;
    p->cols = p->layout == PACKED_GPTQ ? a * per_word : b;
    if (p->layout == PACKED_AWQ)
        p->cols = a;
    if (p->layout == PACKED_ALONG_ROWS)
        p->cols = known ? full[1] : b * per_word;
    if (shape && (!known || full[0] != a || p->cols < 1 ||
                  (words && (p->cols > b * per_word || p->cols <= (b - 1) * per_word))))
        return err_set(e, ERR_INVALID,
                       "cannot be read: its shape, %s, is not one that its %lld x %lld words have",
                       shape->name, (long long)a, (long long)b);
    if (p->layout != PACKED_FP8 && p->cols % 32)
        return err_set(e, ERR_UNSUPPORTED,
                       "cannot be read: its rows of %lld weights are not whole blocks of 32",
                       (long long)p->cols);
    return 0;
}

/* Finds the scheme that the shape of the scales is of. */
static int read_scales(const struct reader *r, struct packed *p, const struct tensor *t, bool *zeros,
                       struct err *e)
{
    bool fp8 = p->layout == PACKED_FP8;
    int64_t a = 0, b = 0;
    if (!t)
        return err_set(e, ERR_NOT_FOUND, "cannot be read: its codes are in the file, but its %s are not",
                       r->method == COMPRESSED_TENSORS ? "scales (weight_scale)"
                       : r->method == FP8              ? "scales (weight_scale_inv or weight_scale)"
                                                       : "scales");
    if (t->dtype != DT_F16 && t->dtype != DT_BF16 && t->dtype != DT_F32)
        return err_set(e, ERR_UNSUPPORTED,
                       "cannot be read: its scales %s have type %s (F16, BF16 and F32 can)", t->name,
                       dtype_info((int)t->dtype)->name);
    p->scales = *t;
    for (int i = 0; i < r->n_schemes; i++) {
        const struct scheme *s = &r->schemes[i];
        if (s->fp8 != fp8 || s->bits != p->bits)
            continue;
        p->group_rows = s->group_rows ? s->group_rows : p->rows;
        p->group_cols = s->group_cols ? s->group_cols : p->cols;
        p->n_groups = divide_up(p->cols, p->group_cols);
        *zeros = s->zeros;
        a = p->scales_by_group ? p->n_groups : divide_up(p->rows, p->group_rows);
        b = p->scales_by_group ? p->rows : p->n_groups;
        if (is_grid(t, a, b))
            return 0;
    }
    if (!a)
        return err_set(e, ERR_INVALID, "cannot be read: quantization_config has no scheme of %s with %d bits",
                       fp8 ? "float" : "int", p->bits);
    return wrong_shape("scales", t, a, b, e);
}

static int read_zeros(const struct reader *r, struct packed *p, const struct tensor *t, bool needed,
                      struct err *e)
{
    if (!t && !needed)
        return 0;
    if (!t)
        return err_set(e, ERR_NOT_FOUND,
                       "cannot be read: its codes are in the file, but its zero points (%s) are not",
                       r->method == COMPRESSED_TENSORS ? "weight_zero_point" : "qzeros");
    int64_t n = 32 / p->bits, a = p->n_groups, b = divide_up(p->rows, n);
    if (r->method == COMPRESSED_TENSORS) {
        a = t->dtype == DT_I8 ? p->rows : divide_up(p->rows, n);
        b = p->n_groups;
        if (p->group_rows != 1)
            return err_set(e, ERR_UNSUPPORTED, "cannot be read: zero points %s of groups of several rows",
                           t->name);
    }
    if ((t->dtype != DT_I32 && (t->dtype != DT_I8 || r->method != COMPRESSED_TENSORS)) || !is_grid(t, a, b))
        return wrong_shape("zero points", t, a, b, e);
    p->zeros = *t;
    return 0;
}

/* Puts the matrix of `module` together: *type and *p. */
static int put_together(struct reader *r, const char *module, int len, const struct tensor *codes,
                        struct packed *p, enum dtype *type, struct err *e)
{
    static const char *const not_used[] = {".input_scale", ".input_zero_point", ".output_scale", NULL};
    bool compressed = r->method == COMPRESSED_TENSORS, needs_zeros = false;
    const struct tensor *shape = compressed ? take(r, module, len, ".weight_shape") : NULL;
    const struct tensor *scales =
        take(r, module, len, compressed || r->method == FP8 ? ".weight_scale" : ".scales");
    const struct tensor *zeros = take(r, module, len, compressed ? ".weight_zero_point" : ".qzeros");
    const struct tensor *g_idx = take(r, module, len, compressed ? ".weight_g_idx" : ".g_idx");
    const struct tensor *inverse = r->method == FP8 ? take(r, module, len, ".weight_scale_inv") : NULL;
    for (const char *const *s = not_used; *s; s++)
        take(r, module, len, *s);
    p->scales_by_group = r->method == GPTQ || r->method == AWQ;
    p->zero_plus = r->zero_plus;
    p->codes = *codes;
    if (read_codes(r, p, codes, shape, e) || read_scales(r, p, inverse ? inverse : scales, &needs_zeros, e))
        return -1;
    if (p->layout != PACKED_FP8 && read_zeros(r, p, zeros, needs_zeros, e))
        return -1;
    if (g_idx && r->method != AWQ) {
        if (g_idx->dtype != DT_I32 || g_idx->n_dims != 1 || g_idx->shape[0] != p->cols)
            return wrong_shape("groups of columns", g_idx, 1, p->cols, e);
        p->g_idx = *g_idx;
    }
    return packed_choose(p, type, e);
}

/* If t's name ends in `suffix`, the length of what is before it; else 0. */
static int module_of(const char *name, const char *suffix)
{
    size_t len = strlen(name), tail = strlen(suffix);
    return len > tail && strcmp(name + len - tail, suffix) == 0 ? (int)(len - tail) : 0;
}

/* The matrix whose codes t are, added to `out` or to its unread ones. */
static void add_matrix(struct model_file *f, struct reader *r, const char *name, int len,
                       const struct tensor *codes, enum packed_layout layout, struct tensor_list *out)
{
    struct err e = {0};
    struct packed p = {.layout = layout};
    enum dtype type = DT_F32;
    struct str full = {0};
    struct tensor named = *codes;
    named.name = name;
    str_addf(&full, "%.*s.weight", len, name);
    if (put_together(r, name, len, &named, &p, &type, &e) != 0) {
        tensor_list_add_unread(out, str_text(&full), "%s", e.msg);
    } else {
        struct tensor t = {.name = str_text(&full),
                           .dtype = type,
                           .n_dims = 2,
                           .shape = {p.rows, p.cols, 1, 1},
                           .bytes = (size_t)p.rows * dtype_row_bytes(type, p.cols),
                           .packed = mem_alloc(sizeof p)};
        p.codes.name = p.scales.name = p.zeros.name = p.g_idx.name = NULL; /* they will be gone */
        *t.packed = p;
        tensor_list_add(out, &t);
        f->quantised.n_mats++;
        f->quantised.n_rounded += p.rounded;
    }
    str_free(&full);
}

void hf_quantised(struct model_file *f, struct tensor_list *l)
{
    const json_t *q = json_object_get(f->config, "quantization_config");
    struct reader r = {.l = l};
    struct err e = {0};
    if (!json_is_object(q))
        q = json_object_get(json_object_get(f->config, "text_config"), "quantization_config");
    if (!json_is_object(q))
        q = json_object_get(f->config, "compression_config");
    if (!json_is_object(q))
        return;
    int rc = read_config(q, &r, &e);
    f->quantised.format = describe(q, &r);
    if (rc != 0) {
        struct str why = {0};
        str_addf(&why, "quantization_config: %s; %s", e.msg, supported);
        f->quantised.refusal = str_take(&why);
        return;
    }
    struct tensor_list out = {0};
    r.gone = mem_zalloc((size_t)l->n + 1, sizeof *r.gone);
    bool words = r.method == COMPRESSED_TENSORS;
    for (int i = 0; i < l->n; i++) {
        const struct tensor *t = &l->tensors[i];
        int len = module_of(t->name, words ? ".weight_packed" : ".qweight");
        enum packed_layout layout = words ? PACKED_ALONG_ROWS : r.method == AWQ ? PACKED_AWQ : PACKED_GPTQ;
        if (words && !len && t->dtype == DT_I8 && t->n_dims == 2) {
            len = module_of(t->name, ".weight");
            layout = PACKED_BYTES;
        }
        if (!len || r.method == FP8)
            continue;
        r.gone[i] = true;
        add_matrix(f, &r, t->name, len, t, layout, &out);
    }
    for (int i = 0; i < l->n_unread; i++) {
        const struct unread_tensor *u = &l->unread[i];
        int len = module_of(u->name, ".weight");
        if (len && u->is_fp8 && u->bytes.n_dims == 2 && (words || r.method == FP8)) {
            add_matrix(f, &r, u->name, len, &u->bytes, PACKED_FP8, &out);
        } else {
            struct unread_tensor *kept = tensor_list_add_unread(&out, u->name, "%s", u->why);
            kept->is_fp8 = u->is_fp8;
            kept->bytes = u->bytes;
        }
    }
    for (int i = 0; i < l->n; i++)
        if (!r.gone[i])
            tensor_list_add(&out, &l->tensors[i]);
    free(r.gone);
    tensor_list_free(l);
    *l = out;
}
