/* Opening a model: which kind of thing is at the path, all of its files mapped and parsed, and one sorted
 * list of tensors over them. */
#include "file/model_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"
#include "file/gguf.h"
#include "file/internal.h"
#include "file/packed.h"

const struct mapping *model_file_map(struct model_file *f, const char *path, struct err *e)
{
    struct mapping m;
    if (mapping_open(&m, path, e) != 0)
        return NULL;
    f->maps = mem_realloc(f->maps, (size_t)f->n_maps + 1, sizeof *f->maps);
    f->maps[f->n_maps++] = m;
    return &f->maps[f->n_maps - 1];
}

/* ---- GGUF, in one part or several -----------------------------------------------------------------------
 */

#define SPLIT_SUFFIX "-00001-of-00001.gguf" /* its length is what counts */

/* The path of part `part` (0 first) of `count`, whatever part `path` is; NULL if its name is not of that
 * form. */
static char *part_path(const char *path, int part, int count)
{
    const size_t len = strlen(path), tail = sizeof SPLIT_SUFFIX - 1;
    int no, of, end = 0;
    if (len <= tail || sscanf(path + len - tail, "-%5d-of-%5d.gguf%n", &no, &of, &end) != 2 ||
        end != (int)tail || of != count)
        return NULL;
    struct str s = {0};
    str_add(&s, path, len - tail);
    str_addf(&s, "-%05d-of-%05d.gguf", part + 1, count);
    return str_take(&s);
}

/* Parses one file. It must be part `part` of `count`; with count 0 it may be any, and its own numbers come
 * back in *own_part and *own_count (0 and 1 for an unsplit file). */
static struct gguf *open_part(struct model_file *f, struct tensor_list *l, const char *path, int64_t part,
                              int64_t count, int64_t *own_part, int64_t *own_count, struct err *e)
{
    const struct mapping *m = model_file_map(f, path, e);
    if (!m)
        return NULL;
    struct gguf *g = gguf_parse(m->data, m->size, l, e);
    if (!g) {
        err_prefix(e, "%s", path);
        return NULL;
    }
    *own_part = 0;
    *own_count = 1;
    gguf_i64(g, "split.no", own_part);
    gguf_i64(g, "split.count", own_count);
    if (*own_count <= 1)
        *own_part = 0, *own_count = 1;
    if (*own_part < 0 || *own_part >= *own_count || *own_count > 99999) {
        err_set(e, ERR_INVALID, "%s: says that it is part %lld (split.no, from 0) of %lld (split.count)",
                path, (long long)*own_part, (long long)*own_count);
        goto fail;
    }
    if (count && (*own_part != part || *own_count != count)) {
        err_set(e, ERR_INVALID, "%s: is part %lld of %lld inside, not what its name says; fetch it again",
                path, (long long)*own_part + 1, (long long)*own_count);
        goto fail;
    }
    return g;
fail:
    gguf_free(g);
    return NULL;
}

static int open_gguf(struct model_file *f, struct tensor_list *l, struct err *e)
{
    int64_t part, count, total, part_count;
    f->kind = MODEL_FILE_GGUF;
    f->gguf = open_part(f, l, f->path, 0, 0, &part, &count, e);
    if (!f->gguf)
        return -1;
    if (part != 0) {
        char *first = part_path(f->path, 0, (int)count);
        err_set(e, ERR_INVALID, "%s: is part %lld of %lld; give the path of the first%s%s", f->path,
                (long long)part + 1, (long long)count, first ? ": " : "", first ? first : "");
        free(first);
        return -1;
    }
    if (count > 1 && !gguf_i64(f->gguf, "split.tensors.count", &total))
        return err_set(e, ERR_INVALID, "%s: is split in %lld parts, but lacks the key 'split.tensors.count'",
                       f->path, (long long)count);
    for (int64_t i = 1; i < count; i++) {
        char *path = part_path(f->path, (int)i, (int)count);
        if (!path)
            return err_set(
                e, ERR_INVALID,
                "%s: is the first of %lld parts, which must be named NAME-00001-of-%05lld.gguf and so on",
                f->path, (long long)count, (long long)count);
        struct gguf *g = open_part(f, l, path, i, count, &part, &part_count, e);
        free(path);
        if (!g)
            return -1;
        gguf_free(g); /* the metadata of later parts only repeat which part they are */
    }
    if (count > 1 && total != l->n)
        return err_set(e, ERR_INVALID, "%s: its parts hold %d tensors instead of %lld; fetch them again",
                       f->path, l->n, (long long)total);
    f->chat_template = mem_strdup(gguf_str(f->gguf, "tokenizer.chat_template", NULL));
    return 0;
}

/* ---- The whole ------------------------------------------------------------------------------------------
 */

/* The error for a file that does not begin as GGUF files do. */
static int not_gguf(const char *path, struct err *e)
{
    const size_t len = strlen(path);
    if (len > 12 && strcmp(path + len - 12, ".safetensors") == 0)
        return err_set(
            e, ERR_INVALID,
            "%s: is a safetensors file, which lacks the model's description; give the directory that "
            "holds it with its config.json",
            path);
    return err_set(
        e, ERR_INVALID,
        "%s: is not a GGUF file (it does not begin with \"GGUF\"); give a .gguf file, or a directory with "
        "config.json and *.safetensors",
        path);
}

static int open_any(struct model_file *f, struct tensor_list *l, struct err *e)
{
    struct stat st;
    struct mapping m;
    if (stat(f->path, &st) == 0 && S_ISDIR(st.st_mode))
        return hf_dir_open(f, l, e);
    if (mapping_open(&m, f->path, e) != 0)
        return -1;
    const bool is_gguf = m.size >= 4 && memcmp(m.data, "GGUF", 4) == 0;
    mapping_close(&m);
    return is_gguf ? open_gguf(f, l, e) : not_gguf(f->path, e);
}

static int open_lone_safetensors(struct model_file *f, struct tensor_list *l, struct err *e)
{
    f->kind = MODEL_FILE_HF;
    const struct mapping *m = model_file_map(f, f->path, e);
    if (!m)
        return -1;
    return safetensors_parse(m->data, m->size, l, e) == 0 ? 0 : err_prefix(e, "%s", f->path);
}

/* Runs an opener, then moves the tensors it found into the model_file. */
static struct model_file *finish(const char *path,
                                 int (*open)(struct model_file *, struct tensor_list *, struct err *),
                                 struct err *e)
{
    struct model_file *f = mem_zalloc(1, sizeof *f);
    struct tensor_list l = {0};
    f->path = mem_strdup(path);
    int result = open(f, &l, e);
    if (result == 0 && (result = tensor_list_sort(&l, e)) != 0)
        err_prefix(e, "%s", path);
    f->tensors = l.tensors;
    f->n_tensors = l.n;
    f->unread = l.unread;
    f->n_unread = l.n_unread;
    if (result != 0) {
        model_file_close(f);
        return NULL;
    }
    return f;
}

struct model_file *model_file_open(const char *path, struct err *e)
{
    return finish(path, open_any, e);
}

struct model_file *model_file_open_safetensors(const char *path, struct err *e)
{
    return finish(path, open_lone_safetensors, e);
}

struct model_file *model_file_open_tokenizer(const char *path, struct err *e)
{
    static const char name[] = "tokenizer.json";
    size_t len = strlen(path), tail = sizeof name - 1;
    if (len < tail || strcmp(path + len - tail, name) != 0)
        return finish(path, hf_dir_open_tokenizer, e);
    if (len > tail && path[len - tail - 1] != '/') {
        err_set(e, ERR_INVALID, "%s: the file must be called tokenizer.json, as others are found beside it",
                path);
        return NULL;
    }
    char *dir = len == tail ? mem_strdup(".") : mem_strndup(path, len - tail);
    struct model_file *f = finish(dir, hf_dir_open_tokenizer, e);
    free(dir);
    return f;
}

static struct tensor_list list_of(const struct model_file *f)
{
    return (struct tensor_list){
        .tensors = f->tensors, .n = f->n_tensors, .unread = f->unread, .n_unread = f->n_unread};
}

void model_file_close(struct model_file *f)
{
    if (!f)
        return;
    struct tensor_list l = list_of(f);
    tensor_list_free(&l);
    gguf_free(f->gguf);
    json_decref(f->config);
    json_decref(f->generation_config);
    json_decref(f->tokenizer);
    json_decref(f->tokenizer_config);
    free(f->chat_template);
    free(f->quantised.format);
    free(f->quantised.refusal);
    for (int i = 0; i < f->n_maps; i++)
        mapping_close(&f->maps[i]);
    free(f->maps);
    free(f->path);
    free(f);
}

const struct tensor *model_file_tensor(const struct model_file *f, const char *name)
{
    struct tensor_list l = list_of(f);
    return tensor_list_find(&l, name);
}

const char *model_file_why_missing(const struct model_file *f, const char *name)
{
    struct tensor_list l = list_of(f);
    const struct unread_tensor *u = tensor_list_find_unread(&l, name);
    return u ? u->why : "is not in the file";
}

void model_file_drop(const struct model_file *f, const struct tensor *t)
{
    if (t->packed) {
        model_file_drop(f, &t->packed->codes);
        model_file_drop(f, &t->packed->scales);
        model_file_drop(f, &t->packed->zeros);
        return;
    }
    (void)f; /* any mapping: whole pages inside the tensor belong to no other one */
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = ((uintptr_t)t->data + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)t->data + t->bytes) / page * page;
    if (begin < end)
        madvise((void *)begin, end - begin, MADV_DONTNEED); /* advice: nothing is lost if it is not taken */
}
