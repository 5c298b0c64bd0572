/* What a model is, in 16 bytes: two models with the same digest have the same files. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "file/internal.h"

void model_file_digest(const struct model_file *f, uint64_t out[2])
{
    struct hash h;
    hash_init(&h);
    for (int i = 0; i < f->n_maps; i++)
        hash_add(&h, f->maps[i].data, f->maps[i].size);
    char *config = f->config ? json_dumps(f->config, JSON_SORT_KEYS | JSON_COMPACT) : NULL;
    if (config)
        hash_add(&h, config, strlen(config));
    free(config);
    hash_end(&h, out);
}
