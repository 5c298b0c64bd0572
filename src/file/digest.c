/* What a model is, in 16 bytes: two models with the same digest have the same bytes in the same tensors. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "file/internal.h"

static bool is_mapped(const struct model_file *f, const struct tensor *t)
{
    for (int i = 0; i < f->n_maps; i++) {
        const uint8_t *begin = f->maps[i].data, *data = t->data;
        if (data >= begin && data < begin + f->maps[i].size)
            return true;
    }
    return false;
}

void model_file_digest(const struct model_file *f, uint64_t out[2])
{
    struct hash h;
    hash_init(&h);
    for (int i = 0; i < f->n_maps; i++)
        hash_add(&h, f->maps[i].data, f->maps[i].size);
    for (int i = 0; i < f->n_tensors; i++) { /* some may have been made of the file's, in memory */
        const struct tensor *t = &f->tensors[i];
        hash_add(&h, t->name, strlen(t->name) + 1);
        hash_add(&h, &t->dtype, sizeof t->dtype);
        hash_add(&h, t->shape, sizeof t->shape);
        if (!t->packed && !is_mapped(f, t))
            hash_add(&h, t->data, t->bytes);
    }
    char *config = f->config ? json_dumps(f->config, JSON_SORT_KEYS | JSON_COMPACT) : NULL;
    if (config)
        hash_add(&h, config, strlen(config));
    free(config);
    hash_end(&h, out);
}
