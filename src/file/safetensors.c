/* The safetensors format: eight bytes of header length, a JSON object
 *
 *   {"NAME": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, …, "__metadata__": {…}}
 *
 * and the data, into which the offsets point. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "file/internal.h"

#define MAX_HEADER 100000000 /* the format's own limit */

static const struct {
    const char *name;
    int bytes; /* an element; 0: not a whole number of bytes, or unknown */
    int dtype; /* -1: sluice does not read it */
} element_types[] = {
    {"F64", 8, DT_F64}, {"F32", 4, DT_F32}, {"F16", 2, DT_F16}, {"BF16", 2, DT_BF16}, {"I64", 8, DT_I64},
    {"I32", 4, DT_I32}, {"I16", 2, DT_I16}, {"I8", 1, DT_I8},   {"U64", 8, -1},       {"U32", 4, -1},
    {"U16", 2, -1},     {"U8", 1, -1},      {"BOOL", 1, -1},    {"F8_E4M3", 1, -1},   {"F8_E5M2", 1, -1},
};

/* A non-negative integer of the header. */
static bool get_u64(const json_t *j, uint64_t *out)
{
    if (!json_is_integer(j) || json_integer_value(j) < 0)
        return false;
    *out = (uint64_t)json_integer_value(j);
    return true;
}

/* One entry of the header, its data inside data [size]. */
static int parse_tensor(const char *name, const json_t *entry, const uint8_t *data, uint64_t size,
                        struct tensor_list *l, struct byte_range *range, struct err *e)
{
    if (!name_is_valid(name, strlen(name)))
        return err_set(e, ERR_INVALID, "a tensor's name is empty, too long or holds control characters");
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    uint64_t begin, end;
    if (!type || !json_is_array(shape))
        return err_set(e, ERR_INVALID, "tensor '%s': its header entry lacks a dtype or a shape", name);
    if (json_array_size(offsets) != 2 || !get_u64(json_array_get(offsets, 0), &begin) ||
        !get_u64(json_array_get(offsets, 1), &end) || begin > end)
        return err_set(e, ERR_INVALID, "tensor '%s': data_offsets is not [begin, end] with 0 <= begin <= end",
                       name);
    if (end > size)
        return err_set(
            e, ERR_INVALID,
            "tensor '%s' ends at byte %llu of the data, but the file holds only %llu: it is cut short "
            "or damaged; fetch it again",
            name, (unsigned long long)end, (unsigned long long)size);
    *range = (struct byte_range){.begin = begin, .end = end, .name = name};

    struct tensor t = {
        .name = name, .shape = {1, 1, 1, 1}, .data = data + begin, .bytes = (size_t)(end - begin)};
    size_t n_dims = json_array_size(shape);
    uint64_t count = 1;
    bool empty = false;
    for (size_t i = 0; i < n_dims; i++) {
        uint64_t dim;
        if (!get_u64(json_array_get(shape, i), &dim))
            return err_set(e, ERR_INVALID, "tensor '%s': dimension %zu is not a whole number", name, i);
        if (dim == 0)
            empty = true;
        else if (__builtin_mul_overflow(count, dim, &count) || count > INT64_MAX)
            return err_set(e, ERR_INVALID, "tensor '%s': its dimensions multiply to more than 2^63", name);
        if (i < TENSOR_MAX_DIMS)
            t.shape[i] = (int64_t)dim;
    }

    int bytes = 0, dtype = -1;
    for (size_t i = 0; i < sizeof element_types / sizeof element_types[0]; i++)
        if (strcmp(type, element_types[i].name) == 0)
            bytes = element_types[i].bytes, dtype = element_types[i].dtype;
    uint64_t expected;
    if (bytes &&
        (__builtin_mul_overflow(empty ? 0 : count, (uint64_t)bytes, &expected) || expected != end - begin))
        return err_set(e, ERR_INVALID,
                       "tensor '%s': its shape and type need other than the %llu bytes it has", name,
                       (unsigned long long)(end - begin));

    if (dtype < 0) {
        struct unread_tensor *u =
            tensor_list_add_unread(l, name, "has the element type %.40s, which sluice does not read", type);
        u->is_fp8 = strcmp(type, "F8_E4M3") == 0 && n_dims >= 1 && n_dims <= TENSOR_MAX_DIMS && !empty;
        if (u->is_fp8) {
            u->bytes = t;
            u->bytes.name = NULL;
            u->bytes.dtype = DT_I8;
            u->bytes.n_dims = (int)n_dims;
        }
    } else if (n_dims > TENSOR_MAX_DIMS)
        tensor_list_add_unread(l, name, "has %zu dimensions; sluice reads up to %d", n_dims, TENSOR_MAX_DIMS);
    else if (empty)
        tensor_list_add_unread(l, name, "has no elements");
    else {
        t.dtype = (enum dtype)dtype;
        t.n_dims = (int)n_dims;
        tensor_list_add(l, &t);
    }
    return 0;
}

int safetensors_parse(const uint8_t *data, size_t size, struct tensor_list *l, struct err *e)
{
    uint64_t header = 0;
    int result = -1;
    if (size < 8)
        return err_set(e, ERR_INVALID, "%zu bytes are too few for a safetensors file; fetch it again", size);
    for (int i = 0; i < 8; i++)
        header |= (uint64_t)data[i] << 8 * i;
    if (header > MAX_HEADER)
        return err_set(e, ERR_INVALID,
                       "its header would be %llu bytes long (the limit is %d): it is damaged, or "
                       "not a safetensors file",
                       (unsigned long long)header, MAX_HEADER);
    if (header > size - 8)
        return err_set(e, ERR_INVALID,
                       "its header of %llu bytes runs past the end of the file: it is cut short; "
                       "fetch it again",
                       (unsigned long long)header);

    json_error_t json_err;
    json_t *root = json_loadb((const char *)data + 8, (size_t)header, JSON_REJECT_DUPLICATES, &json_err);
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(e, ERR_INVALID, "its header is not a JSON object%s%s", root ? "" : ": ",
                       root ? "" : json_err.text);
    }
    struct byte_range *ranges = mem_zalloc(json_object_size(root), sizeof *ranges);
    size_t n = 0;
    const char *name;
    json_t *entry;
    json_object_foreach(root, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (parse_tensor(name, entry, data + 8 + header, size - 8 - header, l, &ranges[n], e) != 0)
            goto done;
        n++;
    }
    result = byte_ranges_check(ranges, n, e);
done:
    free(ranges);
    json_decref(root);
    return result;
}

#ifdef FUZZING
/* clang -fsanitize=fuzzer,address -DFUZZING: any bytes must give tensors inside them, or an error. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tensor_list l = {0};
    struct err e;
    if (safetensors_parse(data, size, &l, &e) == 0 && tensor_list_sort(&l, &e) == 0)
        for (int i = 0; i < l.n; i++) {
            const uint8_t *begin = l.tensors[i].data;
            if (begin < data || l.tensors[i].bytes > (size_t)(data + size - begin))
                abort();
        }
    tensor_list_free(&l);
    return 0;
}
#endif
