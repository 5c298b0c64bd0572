/* The layout that gguf.c reads, written: the head is composed in memory, the data go straight to their place
 * in the file, whose full length is reserved at once, so that a disk that is too small is found out before
 * the work and not after it. */
#include "file/gguf_write.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"
#include "file/gguf_internal.h"

#define ALIGNMENT 32 /* GGUF's own where general.alignment does not say otherwise */

struct declared {
    char *name;
    uint64_t offset, bytes; /* in the data part */
    _Atomic uint64_t written;
};

struct gguf_writer {
    char *path, *partial; /* partial: what the file is called until it is finished */
    int fd;               /* -1 once closed */
    bool finished;
    struct str values, infos; /* the encoded pairs, the encoded list of tensors */
    char **keys;              /* [n_keys] */
    int n_keys;
    struct declared *tensors; /* [n_tensors] */
    int n_tensors, cap_tensors;
    uint64_t data_at, data_bytes; /* where the data part begins and how long it is */
    struct err declared_wrong;    /* the first mistake in a declaration */
};

static const uint8_t number_bytes[GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct gguf_writer *gguf_writer_open(const char *path, struct err *e)
{
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        err_set(e, ERR_INVALID, "%s: is not a regular file, and cannot be replaced by one", path);
        return NULL;
    }
    struct gguf_writer *w = mem_zalloc(1, sizeof *w);
    struct str partial = {0};
    str_addf(&partial, "%s.partial-%ld", path, (long)getpid());
    w->path = mem_strdup(path);
    w->partial = str_take(&partial);
    w->fd = open(w->partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        err_set(e, ERR_IO, "%s: cannot create it: %s", w->partial, strerror(errno));
        w->finished = true; /* there is nothing of ours to remove */
        gguf_writer_close(w);
        return NULL;
    }
    return w;
}

void gguf_writer_close(struct gguf_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    if (!w->finished)
        unlink(w->partial);
    for (int i = 0; i < w->n_keys; i++)
        free(w->keys[i]);
    for (int i = 0; i < w->n_tensors; i++)
        free(w->tensors[i].name);
    free(w->keys);
    free(w->tensors);
    str_free(&w->values);
    str_free(&w->infos);
    free(w->path);
    free(w->partial);
    free(w);
}

/* ---- Declarations -----------------------------------------------------------------------------------------
 */

#define wrong(w, ...)                                                \
    do {                                                             \
        if ((w)->declared_wrong.code == ERR_NONE)                    \
            err_set(&(w)->declared_wrong, ERR_INVALID, __VA_ARGS__); \
    } while (0)

static void put(struct str *s, int n_bytes, uint64_t v)
{
    char bytes[8];
    for (int i = 0; i < n_bytes; i++)
        bytes[i] = (char)(v >> 8 * i);
    str_add(s, bytes, (size_t)n_bytes);
}

static void put_text(struct str *s, const char *text, size_t len)
{
    put(s, 8, len);
    str_add(s, text, len);
}

/* Begins a pair; the value follows, made of elements of `type`. */
static void put_key(struct gguf_writer *w, const char *key, enum gguf_type type)
{
    if (type != GGUF_STR && number_bytes[type] == 0)
        wrong(w, "metadata key \"%.100s\": values of type %d are not numbers", key, (int)type);
    if (strcmp(key, "general.alignment") == 0)
        wrong(w, "metadata key \"general.alignment\" is not for callers to give");
    if (!name_is_valid(key, strlen(key)))
        wrong(w, "metadata key \"%.100s\" is empty, too long or not printable UTF-8", key);
    for (int i = 0; i < w->n_keys; i++)
        if (strcmp(w->keys[i], key) == 0)
            wrong(w, "metadata key \"%.100s\" is given twice", key);
    w->keys = mem_realloc(w->keys, (size_t)w->n_keys + 1, sizeof *w->keys);
    w->keys[w->n_keys++] = mem_strdup(key);
    put_text(&w->values, key, strlen(key));
}

static void put_array_head(struct gguf_writer *w, enum gguf_type type, uint64_t n)
{
    put(&w->values, 4, GGUF_ARR);
    put(&w->values, 4, type);
    put(&w->values, 8, n);
}

void gguf_writer_number(struct gguf_writer *w, const char *key, enum gguf_type type, const void *value)
{
    put_key(w, key, type);
    put(&w->values, 4, type);
    str_add(&w->values, value, number_bytes[type]);
}

void gguf_writer_numbers(struct gguf_writer *w, const char *key, enum gguf_type type, const void *values,
                         uint64_t n)
{
    put_key(w, key, type);
    put_array_head(w, type, n);
    str_add(&w->values, values, (size_t)n * number_bytes[type]);
}

void gguf_writer_text(struct gguf_writer *w, const char *key, struct gguf_text text)
{
    put_key(w, key, GGUF_STR);
    put(&w->values, 4, GGUF_STR);
    put_text(&w->values, text.s, text.len);
}

void gguf_writer_texts(struct gguf_writer *w, const char *key, const struct gguf_text *texts, uint64_t n)
{
    put_key(w, key, GGUF_STR);
    put_array_head(w, GGUF_STR, n);
    for (uint64_t i = 0; i < n; i++)
        put_text(&w->values, texts[i].s, texts[i].len);
}

void gguf_writer_copy(struct gguf_writer *w, const struct gguf *g, int64_t i)
{
    const struct gguf_value *v = &g->values[i];
    if (strcmp(v->key, "general.alignment") == 0)
        return; /* this file's is its own */
    put_key(w, v->key, v->type);
    if (v->is_array)
        put_array_head(w, v->type, v->count);
    else
        put(&w->values, 4, v->type);
    size_t bytes = (size_t)v->count * number_bytes[v->type];
    if (v->type == GGUF_STR && v->count) {
        size_t len;
        const char *last = gguf_value_str(v, v->count - 1, &len);
        bytes = (size_t)(last - (const char *)v->data) + len;
    }
    str_add(&w->values, (const char *)v->data, bytes);
}

void gguf_writer_str(struct gguf_writer *w, const char *key, const char *s)
{
    gguf_writer_text(w, key, (struct gguf_text){s, strlen(s)});
}

void gguf_writer_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    gguf_writer_number(w, key, GGUF_U32, &v);
}

void gguf_writer_f32(struct gguf_writer *w, const char *key, float v)
{
    gguf_writer_number(w, key, GGUF_F32, &v);
}

void gguf_writer_bool(struct gguf_writer *w, const char *key, bool v)
{
    gguf_writer_number(w, key, GGUF_BOOL, &(uint8_t){v});
}

/* Bytes of a tensor; 0 and a note of what is wrong if there can be no such tensor. */
static uint64_t bytes_of(struct gguf_writer *w, const char *name, enum dtype dtype, int n_dims,
                         const int64_t *shape)
{
    const struct dtype_info *info = dtype_info((int)dtype);
    uint64_t count = 1, bytes;
    if (!name_is_valid(name, strlen(name))) {
        wrong(w, "a tensor's name \"%.100s\" is empty, too long or not printable UTF-8", name);
        return 0;
    }
    if (n_dims < 0 || n_dims > TENSOR_MAX_DIMS || !info->name) {
        wrong(w, "tensor \"%.200s\": %d dimensions of type %d cannot be written", name, n_dims, (int)dtype);
        return 0;
    }
    for (int i = 0; i < n_dims; i++)
        if (shape[i] < 1 || __builtin_mul_overflow(count, (uint64_t)shape[i], &count)) {
            wrong(w, "tensor \"%.200s\": its dimension %d is %" PRId64, name, i, shape[i]);
            return 0;
        }
    int64_t cols = n_dims ? shape[n_dims - 1] : 1;
    if (!dtype_row_fits(dtype, cols)) {
        wrong(w, "tensor \"%.200s\": rows of %" PRId64 " do not divide into the blocks of %d of %s", name,
              cols, info->block, info->name);
        return 0;
    }
    if (__builtin_mul_overflow(count / (uint64_t)info->block, (uint64_t)info->bytes, &bytes) ||
        bytes > INT64_MAX / 2) {
        wrong(w, "tensor \"%.200s\": its size overflows", name);
        return 0;
    }
    return bytes;
}

int gguf_writer_tensor(struct gguf_writer *w, const char *name, enum dtype dtype, int n_dims,
                       const int64_t *shape)
{
    if (w->n_tensors == w->cap_tensors) {
        w->cap_tensors = w->cap_tensors ? 2 * w->cap_tensors : 256;
        w->tensors = mem_realloc(w->tensors, (size_t)w->cap_tensors, sizeof *w->tensors);
    }
    struct declared *t = &w->tensors[w->n_tensors];
    *t = (struct declared){.name = mem_strdup(name),
                           .offset = (w->data_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT,
                           .bytes = bytes_of(w, name, dtype, n_dims, shape)};
    if (__builtin_add_overflow(t->offset, t->bytes, &w->data_bytes) || w->data_bytes > INT64_MAX / 2)
        wrong(w, "the tensors up to \"%.200s\" are more than any file can hold", name);
    put_text(&w->infos, name, strlen(name));
    put(&w->infos, 4, (uint64_t)n_dims);
    for (int i = n_dims - 1; i >= 0; i--)
        put(&w->infos, 8, (uint64_t)shape[i]);
    put(&w->infos, 4, dtype);
    put(&w->infos, 8, t->offset);
    return w->n_tensors++;
}

size_t gguf_writer_tensor_bytes(const struct gguf_writer *w, int tensor)
{
    return (size_t)w->tensors[tensor].bytes;
}

uint64_t gguf_writer_data_bytes(const struct gguf_writer *w)
{
    return w->data_bytes;
}

/* ---- Writing ----------------------------------------------------------------------------------------------
 */

static int write_at(const struct gguf_writer *w, uint64_t at, const void *bytes, size_t n, struct err *e)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pwrite(w->fd, (const char *)bytes + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_set(e, ERR_IO, "%s: cannot write %zu bytes at byte %" PRIu64 " of it: %s", w->partial,
                           n - done, at + done, strerror(errno));
        done += (size_t)got;
    }
    return 0;
}

/* Gives the file its whole length, and the disk's blocks with it where the file system can do that. */
static int reserve(const struct gguf_writer *w, uint64_t size, struct err *e)
{
    if (fallocate(w->fd, 0, 0, (off_t)size) == 0)
        return 0;
    if ((errno == EOPNOTSUPP || errno == ENOSYS) && ftruncate(w->fd, (off_t)size) == 0)
        return 0;
    return err_set(e, ERR_IO, "%s: there is no room for its %" PRIu64 " bytes: %s", w->partial, size,
                   strerror(errno));
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const struct gguf_writer *w, struct err *e)
{
    const char **names = mem_zalloc((size_t)w->n_tensors + 1, sizeof *names), *twice = NULL;
    for (int i = 0; i < w->n_tensors; i++)
        names[i] = w->tensors[i].name;
    qsort(names, (size_t)w->n_tensors, sizeof *names, by_name);
    for (int i = 1; i < w->n_tensors; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            twice = names[i];
    free(names);
    return twice ? err_set(e, ERR_INVALID, "%s: tensor \"%.200s\" is given twice", w->path, twice) : 0;
}

int gguf_writer_begin(struct gguf_writer *w, struct err *e)
{
    if (w->declared_wrong.code != ERR_NONE)
        return err_set(e, w->declared_wrong.code, "%s: %s", w->path, w->declared_wrong.msg);
    if (check_names(w, e))
        return -1;
    struct str head = {0};
    str_adds(&head, "GGUF");
    put(&head, 4, 3);
    put(&head, 8, (uint64_t)w->n_tensors);
    put(&head, 8, (uint64_t)w->n_keys);
    str_add(&head, str_text(&w->values), w->values.len);
    str_add(&head, str_text(&w->infos), w->infos.len);
    w->data_at = (head.len + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    int rc = reserve(w, w->data_at + w->data_bytes, e);
    if (rc == 0)
        rc = write_at(w, 0, head.data, head.len, e);
    str_free(&head);
    return rc;
}

int gguf_writer_data(struct gguf_writer *w, int tensor, size_t offset, const void *bytes, size_t n,
                     struct err *e)
{
    struct declared *t = &w->tensors[tensor];
    if (offset > t->bytes || n > t->bytes - offset)
        return err_set(e, ERR_INVALID, "%s: %zu bytes at %zu are past the end of tensor \"%s\" of %" PRIu64,
                       w->path, n, offset, t->name, t->bytes);
    if (write_at(w, w->data_at + t->offset + offset, bytes, n, e))
        return -1;
    atomic_fetch_add(&t->written, n);
    return 0;
}

int gguf_writer_finish(struct gguf_writer *w, struct err *e)
{
    for (int i = 0; i < w->n_tensors; i++) {
        uint64_t written = atomic_load(&w->tensors[i].written);
        if (written != w->tensors[i].bytes)
            return err_set(e, ERR_INVALID, "%s: tensor \"%s\" got %" PRIu64 " of its %" PRIu64 " bytes",
                           w->path, w->tensors[i].name, written, w->tensors[i].bytes);
    }
    int rc = fsync(w->fd);
    if (close(w->fd) != 0)
        rc = -1;
    w->fd = -1;
    if (rc != 0)
        return err_set(e, ERR_IO, "%s: the system could not keep its %" PRIu64 " bytes: %s", w->partial,
                       w->data_at + w->data_bytes, strerror(errno));
    if (rename(w->partial, w->path) != 0)
        return err_set(e, ERR_IO, "%s: cannot rename it to %s: %s", w->partial, w->path, strerror(errno));
    w->finished = true;
    return 0;
}
