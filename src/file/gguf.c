/* Parsing GGUF, versions 2 and 3, little-endian:
 *
 *   "GGUF", u32 version, u64 tensors, u64 pairs
 *   pairs:   string key, u32 type, value          string = u64 length, bytes
 *                                                 array  = u32 type, u64 count, elements
 *   tensors: string name, u32 n_dims, u64 dims[n_dims] (innermost first), u32 type, u64 offset
 *   padding to general.alignment (32), then the data, into which the offsets point
 *
 * A cursor walks over it once and refuses to take what is not there; everything else is arithmetic on numbers
 * that were compared with the file's size before. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "file/gguf_internal.h"

/* ---- The cursor -----------------------------------------------------------------------------------------
 */

struct cursor {
    const uint8_t *data;
    size_t size, pos;
    struct err *e;
};

static size_t left(const struct cursor *c)
{
    return c->size - c->pos;
}

/* An unsigned little-endian number of n bytes. */
static bool take(struct cursor *c, int n, uint64_t *out)
{
    if (left(c) < (size_t)n)
        return false;
    *out = 0;
    for (int i = 0; i < n; i++)
        *out |= (uint64_t)c->data[c->pos + (size_t)i] << 8 * i;
    c->pos += (size_t)n;
    return true;
}

static bool take_u32(struct cursor *c, uint32_t *out)
{
    uint64_t v;
    if (!take(c, 4, &v))
        return false;
    *out = (uint32_t)v;
    return true;
}

static bool take_string(struct cursor *c, const char **s, size_t *len)
{
    uint64_t n;
    if (!take(c, 8, &n) || n > left(c))
        return false;
    *s = (const char *)c->data + c->pos;
    *len = (size_t)n;
    c->pos += (size_t)n;
    return true;
}

static int cut_short(const struct cursor *c, const char *what, const char *name)
{
    return err_set(
        c->e, ERR_INVALID,
        "%s%s%s%s needs more bytes than the file's %zu: it is cut short or damaged; fetch it again", what,
        name ? " '" : "", name ? name : "", name ? "'" : "", c->size);
}

/* ---- Metadata -------------------------------------------------------------------------------------------
 */

/* Bytes of an element; a string takes at least its length field. */
static const uint8_t least_bytes[GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};

static int parse_value(struct cursor *c, struct gguf_value *v)
{
    uint32_t type;
    uint64_t n = 1;
    if (!take_u32(c, &type))
        return cut_short(c, "the value of key", v->key);
    if (type == GGUF_ARR) {
        v->is_array = true;
        if (!take_u32(c, &type) || !take(c, 8, &n))
            return cut_short(c, "the value of key", v->key);
        if (type == GGUF_ARR)
            return err_set(c->e, ERR_UNSUPPORTED,
                           "key '%s' is an array of arrays, which sluice does not read", v->key);
    }
    if (type >= GGUF_TYPE_COUNT)
        return err_set(c->e, ERR_INVALID, "key '%s' has the value type %u, which GGUF does not define",
                       v->key, type);
    v->type = (enum gguf_type)type;
    if (n > left(c) / least_bytes[type])
        return cut_short(c, v->is_array ? "the array of key" : "the value of key", v->key);
    v->count = n;
    v->data = c->data + c->pos;
    if (type != GGUF_STR) {
        c->pos += (size_t)n * least_bytes[type];
        return 0;
    }
    v->strings = mem_try_alloc((size_t)n, sizeof *v->strings);
    if (!v->strings)
        return err_set(c->e, ERR_NO_MEMORY, "key '%s': no memory to index its %llu strings", v->key,
                       (unsigned long long)n);
    const size_t start = c->pos;
    for (uint64_t i = 0; i < n; i++) {
        const char *s;
        size_t len;
        v->strings[i] = c->pos - start;
        if (!take_string(c, &s, &len))
            return cut_short(c, "a string of key", v->key);
        if (!v->is_array)
            v->text = mem_strndup(s, len);
    }
    return 0;
}

static int by_key(const void *a, const void *b)
{
    const struct gguf_value *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

static int parse_values(struct cursor *c, struct gguf *g, uint64_t count)
{
    if (count > left(c) / 14) /* the shortest pair: an 8 + 1 byte key, a type, a byte */
        return cut_short(c, "its metadata", NULL);
    g->values = mem_try_alloc((size_t)count, sizeof *g->values);
    g->by_key = mem_try_alloc((size_t)count, sizeof *g->by_key);
    if (!g->values || !g->by_key)
        return err_set(c->e, ERR_NO_MEMORY, "no memory for its %llu metadata keys",
                       (unsigned long long)count);
    for (uint64_t i = 0; i < count; i++) {
        const char *key;
        size_t len;
        if (!take_string(c, &key, &len))
            return cut_short(c, "its metadata", NULL);
        if (!name_is_valid(key, len))
            return err_set(c->e, ERR_INVALID,
                           "metadata key %llu (at byte %zu) is empty, too long or not printable UTF-8",
                           (unsigned long long)i, c->pos - len);
        struct gguf_value *v = &g->values[g->n_values];
        v->key = mem_strndup(key, len);
        g->by_key[g->n_values++] = v;
        if (parse_value(c, v) != 0)
            return -1;
    }
    qsort(g->by_key, (size_t)count, sizeof *g->by_key, by_key);
    for (uint64_t i = 1; i < count; i++)
        if (strcmp(g->by_key[i - 1]->key, g->by_key[i]->key) == 0)
            return err_set(c->e, ERR_INVALID, "metadata key '%s' occurs twice", g->by_key[i]->key);
    return 0;
}

static int get_alignment(const struct gguf *g, uint64_t *alignment, struct err *e)
{
    const struct gguf_value *v = gguf_find(g, "general.alignment");
    int64_t n = 32;
    if (v && (v->type != GGUF_U32 || v->is_array))
        return err_set(e, ERR_INVALID, "key 'general.alignment' must be a u32");
    gguf_i64(g, "general.alignment", &n);
    if (n == 0 || (n & (n - 1)) != 0)
        return err_set(e, ERR_INVALID, "key 'general.alignment' is %lld, which is not a power of two",
                       (long long)n);
    *alignment = (uint64_t)n;
    return 0;
}

/* ---- Tensors --------------------------------------------------------------------------------------------
 */

/* Types that were in ggml once; files that have them need a new conversion. */
static const char *removed_type(uint32_t type)
{
    switch (type) {
    case 4:
        return " (Q4_2)";
    case 5:
        return " (Q4_3)";
    case 31:
    case 32:
    case 33:
        return " (a repacked Q4_0)";
    case 36:
    case 37:
    case 38:
        return " (a repacked IQ4_NL)";
    default:
        return "";
    }
}

/* One tensor's entry; its name is a new string in t->name, and *offset is not checked. */
static int parse_tensor(struct cursor *c, struct tensor *t, uint64_t *offset)
{
    const char *s;
    size_t len;
    uint32_t n_dims, type;
    uint64_t dims[TENSOR_MAX_DIMS] = {0}, count = 1;
    if (!take_string(c, &s, &len))
        return cut_short(c, "its tensor list", NULL);
    if (!name_is_valid(s, len))
        return err_set(c->e, ERR_INVALID,
                       "a tensor's name (at byte %zu) is empty, too long or not printable UTF-8",
                       c->pos - len);
    char *name = mem_strndup(s, len);
    t->name = name;
    if (!take_u32(c, &n_dims))
        return cut_short(c, "the entry of tensor", name);
    if (n_dims > TENSOR_MAX_DIMS)
        return err_set(c->e, ERR_INVALID, "tensor '%s' has %u dimensions; there can be up to %d", name,
                       n_dims, TENSOR_MAX_DIMS);
    for (uint32_t i = 0; i < n_dims; i++) {
        if (!take(c, 8, &dims[i]))
            return cut_short(c, "the entry of tensor", name);
        if (dims[i] == 0)
            return err_set(c->e, ERR_INVALID, "tensor '%s': its dimension %u is 0", name, i);
        if (__builtin_mul_overflow(count, dims[i], &count) || count > INT64_MAX)
            return err_set(c->e, ERR_INVALID, "tensor '%s': its dimensions multiply to more than 2^63", name);
    }
    if (!take_u32(c, &type) || !take(c, 8, offset))
        return cut_short(c, "the entry of tensor", name);

    const struct dtype_info *info = dtype_info(type > INT_MAX ? -1 : (int)type);
    if (!info->name)
        return err_set(
            c->e, ERR_UNSUPPORTED,
            "tensor '%s' has the element type %u%s, which sluice does not know; convert the model again "
            "to a current type",
            name, type, removed_type(type));
    const uint64_t cols = n_dims ? dims[0] : 1;
    uint64_t bytes;
    if (!dtype_row_fits((enum dtype)type, (int64_t)cols))
        return err_set(c->e, ERR_INVALID,
                       "tensor '%s': rows of %llu do not divide into the blocks of %d of %s", name,
                       (unsigned long long)cols, info->block, info->name);
    if (__builtin_mul_overflow(count / (uint64_t)info->block, (uint64_t)info->bytes, &bytes))
        return err_set(c->e, ERR_INVALID, "tensor '%s': its size overflows 64 bits", name);

    t->dtype = (enum dtype)type;
    t->n_dims = (int)n_dims;
    t->bytes = (size_t)bytes;
    for (int i = 0; i < TENSOR_MAX_DIMS; i++)
        t->shape[i] = i < (int)n_dims ? (int64_t)dims[(int)n_dims - 1 - i] : 1;
    return 0;
}

static int parse_tensors(struct cursor *c, const struct gguf *g, uint64_t count, struct tensor_list *l)
{
    uint64_t alignment, *offsets = NULL;
    struct byte_range *ranges = NULL;
    const int before = l->n;
    int result = -1;
    if (get_alignment(g, &alignment, c->e) != 0)
        return -1;
    /* The shortest entry: an 8 + 1 byte name, n_dims, no dimensions, a type and an offset. */
    if (count > left(c) / 25 || count > INT_MAX / 4)
        return cut_short(c, "its tensor list", NULL);
    offsets = mem_try_alloc((size_t)count, sizeof *offsets);
    ranges = mem_try_alloc((size_t)count, sizeof *ranges);
    if (!offsets || !ranges) {
        err_set(c->e, ERR_NO_MEMORY, "no memory for its list of %llu tensors", (unsigned long long)count);
        goto done;
    }
    for (uint64_t i = 0; i < count; i++) {
        struct tensor t = {0};
        int parsed = parse_tensor(c, &t, &offsets[i]);
        if (parsed == 0)
            tensor_list_add(l, &t);
        free((char *)t.name);
        if (parsed != 0)
            goto done;
    }

    /* The data begin at the next multiple of the alignment; only now is it known what lies in the file. */
    const uint64_t start = (c->pos + alignment - 1) & ~(alignment - 1); /* both far below 2^63 */
    const uint64_t size = start < c->size ? c->size - start : 0;
    for (uint64_t i = 0; i < count; i++) {
        struct tensor *t = &l->tensors[before + (int)i];
        if (offsets[i] % alignment) {
            err_set(c->e, ERR_INVALID,
                    "tensor '%s': its offset %llu is not a multiple of the alignment, %llu", t->name,
                    (unsigned long long)offsets[i], (unsigned long long)alignment);
            goto done;
        }
        if (offsets[i] > size || t->bytes > size - offsets[i]) {
            err_set(c->e, ERR_INVALID,
                    "tensor '%s' (%zu bytes at byte %llu of the data) runs past the end of the file's %zu "
                    "bytes: it is "
                    "cut short or damaged; fetch it again",
                    t->name, t->bytes, (unsigned long long)offsets[i], c->size);
            goto done;
        }
        t->data = c->data + start + offsets[i];
        ranges[i] = (struct byte_range){.begin = offsets[i], .end = offsets[i] + t->bytes, .name = t->name};
    }
    result = byte_ranges_check(ranges, (size_t)count, c->e);
done:
    free(offsets);
    free(ranges);
    return result;
}

/* ---- The whole ------------------------------------------------------------------------------------------
 */

struct gguf *gguf_parse(const uint8_t *data, size_t size, struct tensor_list *l, struct err *e)
{
    struct cursor c = {.data = data, .size = size, .e = e};
    uint32_t magic, version;
    uint64_t n_tensors, n_values;
    struct gguf *g = mem_zalloc(1, sizeof *g);
    if (!take_u32(&c, &magic) || !take_u32(&c, &version)) {
        cut_short(&c, "the GGUF header", NULL);
        goto fail;
    }
    if (magic != 0x46554747) {
        err_set(e, ERR_INVALID, "it does not begin with \"GGUF\"");
        goto fail;
    }
    if ((version & 0xFFFF) == 0) {
        err_set(e, ERR_UNSUPPORTED, "it is a big-endian GGUF file; sluice reads little-endian ones");
        goto fail;
    }
    if (version != 2 && version != 3) {
        err_set(e, ERR_UNSUPPORTED, "it is a GGUF file of version %u; sluice reads 2 and 3: convert it again",
                version);
        goto fail;
    }
    g->version = (int)version;
    if (!take(&c, 8, &n_tensors) || !take(&c, 8, &n_values)) {
        cut_short(&c, "the GGUF header", NULL);
        goto fail;
    }
    if (parse_values(&c, g, n_values) != 0 || parse_tensors(&c, g, n_tensors, l) != 0)
        goto fail;
    return g;
fail:
    gguf_free(g);
    return NULL;
}

void gguf_free(struct gguf *g)
{
    if (!g)
        return;
    for (int64_t i = 0; i < g->n_values; i++) {
        free(g->values[i].key);
        free(g->values[i].strings);
        free(g->values[i].text);
    }
    free(g->values);
    free(g->by_key);
    free(g);
}

#ifdef FUZZING
/* Build this file alone with clang -fsanitize=fuzzer,address -DFUZZING and link the room's others as they
 * are. Any bytes must give a model whose every value can be read, or an error. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tensor_list l = {0};
    struct err e;
    struct gguf *g = gguf_parse(data, size, &l, &e);
    for (int64_t i = 0; g && i < gguf_count(g); i++) {
        const char *type;
        char text[80];
        size_t len;
        gguf_describe(g, i, &type, text, sizeof text);
        for (int64_t j = 0; j < gguf_array_len(g, gguf_key(g, i)); j++) {
            const char *s = gguf_array_str(g, gguf_key(g, i), j, &len);
            if (s && ((const uint8_t *)s < data || len > (size_t)((const char *)data + size - s)))
                abort();
        }
    }
    for (int i = 0; g && i < l.n; i++) {
        const uint8_t *begin = l.tensors[i].data;
        if (begin < data || begin > data + size || l.tensors[i].bytes > (size_t)(data + size - begin))
            abort();
    }
    tensor_list_free(&l);
    gguf_free(g);
    return 0;
}
#endif
