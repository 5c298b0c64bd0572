/* A Hugging Face directory: config.json beside model.safetensors, or beside the shards that
 * model.safetensors.index.json names, with the tokenizer's files and the chat template where there are any.
 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/str.h"
#include "file/internal.h"

#define MAX_TEXT_FILE ((size_t)256 << 20) /* the largest tokenizer.json known is about 35 MB */

/* "DIR/NAME"; the caller frees. */
static char *path_in(const char *dir, const char *name)
{
    struct str s = {0};
    size_t len = strlen(dir);
    str_addf(&s, "%s%s%s", dir, len && dir[len - 1] == '/' ? "" : "/", name);
    return str_take(&s);
}

/* Maps DIR/NAME, a file of text. 0; 1 if there is none; -1 and *e. */
static int open_text(const char *dir, const char *name, struct mapping *m, struct err *e)
{
    char *path = path_in(dir, name);
    struct err open_err;
    int result = mapping_open(m, path, &open_err);
    if (result != 0 && open_err.code == ERR_NOT_FOUND) {
        result = 1;
    } else if (result != 0) {
        err_set(e, open_err.code, "%s", open_err.msg);
    } else if (m->size > MAX_TEXT_FILE) {
        mapping_close(m);
        result = err_set(e, ERR_INVALID, "%s: its %zu bytes are more than such a file can sensibly have",
                         path, m->size);
    }
    free(path);
    return result;
}

/* Reads the JSON object in DIR/NAME into *out, which stays NULL if there is no such file. */
static int load_json(const char *dir, const char *name, json_t **out, struct err *e)
{
    struct mapping m = {0};
    int found = open_text(dir, name, &m, e);
    if (found != 0)
        return found < 0 ? -1 : 0;
    json_error_t json_err;
    json_t *j = json_loadb((const char *)m.data, m.size, JSON_ALLOW_NUL, &json_err);
    if (!j && json_error_code(&json_err) == json_error_numeric_overflow)
        j = json_loadb((const char *)m.data, m.size, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &json_err);
    if (!j)
        err_set(e, ERR_INVALID, "%s: line %d, column %d: %s", m.path, json_err.line, json_err.column,
                json_err.text);
    else if (!json_is_object(j))
        err_set(e, ERR_INVALID, "%s: is not a JSON object", m.path);
    mapping_close(&m);
    if (!json_is_object(j)) {
        json_decref(j);
        return -1;
    }
    *out = j;
    return 0;
}

/* The error for a directory without config.json: says which file in it was perhaps meant. */
static int no_config(const char *dir, struct err *e)
{
    char gguf[256] = "";
    DIR *d = opendir(dir);
    if (!d)
        return err_set(e, ERR_IO, "%s: cannot read the directory: %s", dir, strerror(errno));
    for (struct dirent *entry; (entry = readdir(d)) != NULL;) {
        size_t len = strlen(entry->d_name);
        if (len > 5 && len < sizeof gguf && strcmp(entry->d_name + len - 5, ".gguf") == 0 &&
            (!*gguf || strcmp(entry->d_name, gguf) < 0))
            memcpy(gguf, entry->d_name, len + 1);
    }
    closedir(d);
    if (*gguf)
        return err_set(e, ERR_NOT_FOUND,
                       "%s: the directory has no config.json, but a GGUF file; give that file's path: %s",
                       dir, gguf);
    return err_set(
        e, ERR_NOT_FOUND,
        "%s: the directory has no config.json; give a directory with config.json and *.safetensors, or a "
        ".gguf file",
        dir);
}

static int add_safetensors(struct model_file *f, struct tensor_list *l, const char *name, struct err *e)
{
    char *path = path_in(f->path, name);
    const struct mapping *m = model_file_map(f, path, e);
    int result = m ? safetensors_parse(m->data, m->size, l, e) : -1;
    if (m && result != 0)
        err_prefix(e, "%s", path);
    free(path);
    return result;
}

/* Opens every shard that the index names, once each. The shards' own headers say what is in them; the index
 * must not promise more. */
static int add_shards(struct model_file *f, struct tensor_list *l, const json_t *index, struct err *e)
{
    static const char index_name[] = "model.safetensors.index.json";
    const json_t *map = json_object_get(index, "weight_map");
    json_t *opened = json_object(); /* file name -> true */
    const char *tensor;
    json_t *file;
    int result = -1;
    if (json_object_size(map) == 0) {
        err_set(e, ERR_INVALID, "%s/%s: has no weight_map", f->path, index_name);
        goto done;
    }
    json_object_foreach((json_t *)map, tensor, file)
    {
        const char *name = json_string_value(file);
        if (!name || !*name || strchr(name, '/')) { /* nothing outside of the directory */
            err_set(e, ERR_INVALID, "%s/%s: the file of tensor '%.200s' is not a plain file name", f->path,
                    index_name, tensor);
            goto done;
        }
        if (json_object_get(opened, name))
            continue;
        if (add_safetensors(f, l, name, e) != 0)
            goto done;
        json_object_set_new(opened, name, json_true());
    }
    if (tensor_list_sort(l, e) != 0) {
        err_prefix(e, "%s", f->path);
        goto done;
    }
    json_object_foreach((json_t *)map, tensor, file)
    {
        if (!tensor_list_find(l, tensor) && !tensor_list_find_unread(l, tensor)) {
            err_set(e, ERR_INVALID,
                    "%s/%s: tensor '%.200s' is not in %s, nor in another shard; fetch the model again",
                    f->path, index_name, tensor, json_string_value(file));
            goto done;
        }
    }
    result = 0;
done:
    json_decref(opened);
    return result;
}

static int open_weights(struct model_file *f, struct tensor_list *l, struct err *e)
{
    char *single = path_in(f->path, "model.safetensors");
    const bool is_single = access(single, F_OK) == 0;
    free(single);
    if (is_single)
        return add_safetensors(f, l, "model.safetensors", e);
    json_t *index = NULL;
    if (load_json(f->path, "model.safetensors.index.json", &index, e) != 0)
        return -1;
    if (!index)
        return err_set(
            e, ERR_NOT_FOUND,
            "%s: the directory has neither model.safetensors nor model.safetensors.index.json; weights in "
            "other forms (pytorch_model.bin …) must be converted to safetensors",
            f->path);
    int result = add_shards(f, l, index, e);
    json_decref(index);
    return result;
}

/* chat_template of tokenizer_config.json: a string, or a list of {"name", "template"} with a "default". */
static const char *template_of_config(const json_t *tokenizer_config)
{
    const json_t *t = json_object_get(tokenizer_config, "chat_template"), *entry;
    size_t i;
    json_array_foreach(t, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_string_value(json_object_get(entry, "template"));
    }
    return json_string_value(t);
}

static int load_chat_template(struct model_file *f, struct err *e)
{
    struct mapping m = {0};
    int found = open_text(f->path, "chat_template.jinja", &m, e);
    if (found < 0)
        return -1;
    if (found > 0) {
        f->chat_template = mem_strdup(template_of_config(f->tokenizer_config));
        return 0;
    }
    f->chat_template = mem_strndup((const char *)m.data, m.size);
    mapping_close(&m);
    return 0;
}

static int load_texts(struct model_file *f, struct err *e)
{
    if (load_json(f->path, "generation_config.json", &f->generation_config, e) != 0 ||
        load_json(f->path, "tokenizer.json", &f->tokenizer, e) != 0 ||
        load_json(f->path, "tokenizer_config.json", &f->tokenizer_config, e) != 0)
        return -1;
    return load_chat_template(f, e);
}

int hf_dir_open(struct model_file *f, struct tensor_list *l, struct err *e)
{
    f->kind = MODEL_FILE_HF;
    if (load_json(f->path, "config.json", &f->config, e) != 0)
        return -1;
    if (!f->config)
        return no_config(f->path, e);
    if (load_texts(f, e) != 0 || open_weights(f, l, e) != 0)
        return -1;
    if (tensor_list_sort(l, e) != 0)
        return err_prefix(e, "%s", f->path);
    hf_quantised(f, l);
    return 0;
}

int hf_dir_open_tokenizer(struct model_file *f, struct tensor_list *l, struct err *e)
{
    (void)l;
    f->kind = MODEL_FILE_HF;
    if (load_json(f->path, "config.json", &f->config, e) != 0 || load_texts(f, e) != 0)
        return -1;
    return f->tokenizer ? 0 : err_set(e, ERR_NOT_FOUND, "%s: there is no tokenizer.json", f->path);
}
