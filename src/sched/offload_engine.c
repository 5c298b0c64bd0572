#include "sched/offload_engine.h"

#include <fcntl.h>
#include <gnu/libc-version.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

static void add_text(struct hash *h, const char *text)
{
    hash_add(h, text ? text : "", text ? strlen(text) + 1 : 1);
}

static void add_number(struct hash *h, uint64_t x)
{
    hash_add(h, &x, sizeof x);
}

/* This very program: another build may compute other bits. It does not change while it runs. */
static uint64_t program[2];

static void read_program(void)
{
    char piece[65536];
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct hash h;
    ssize_t n;
    hash_init(&h);
    while (fd >= 0 && (n = read(fd, piece, sizeof piece)) > 0)
        hash_add(&h, piece, (size_t)n);
    if (fd >= 0)
        close(fd);
    add_text(&h, gnu_get_libc_version());
    hash_end(&h, program);
}

/* All that the bits of keys, values and states depend on besides salt and tokens. Not the number of threads,
 * the batch or the chunks: law 3. */
static void identify(struct engine *en, const struct model_file *file, const struct sluice_options *o,
                     uint64_t out[2])
{
    const struct sluice_plan *p = engine_plan(en);
    const struct sluice_info *info = engine_info(en);
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct hash h;
    uint64_t digest[2];
    model_file_digest(file, digest);
    hash_init(&h);
    hash_add(&h, digest, sizeof digest);
    pthread_once(&once, read_program);
    hash_add(&h, program, sizeof program);
    add_text(&h, o->quantization);
    add_text(&h, info->arch);
    add_text(&h, info->backend);
    add_text(&h, backend_cpu_levels()); /* another CPU may take another way through the same level */
    add_text(&h, p->kv_dtype);
    add_text(&h, p->state_dtype);
    add_text(&h, p->conv_dtype);
    add_number(&h, p->kv_bytes_per_token);
    add_number(&h, p->state_bytes_per_seq);
    add_number(&h, (uint64_t)p->block_size);
    add_number(&h, p->weights);
    add_number(&h, o->mtp);
    hash_end(&h, out);
}

/* Where block or state `index` lies in the back end's memory. */
static char *place_of(struct engine *en, enum offload_kind kind, int index)
{
    const struct sluice_plan *p = engine_plan(en);
    size_t at = (size_t)index;
    if (kind == OFFLOAD_KV)
        return (char *)engine_kv(en)->data + at * (p->kv_bytes_per_token * (size_t)p->block_size);
    return (char *)engine_state(en) + at * p->state_bytes_per_seq;
}

static size_t bytes_of(struct engine *en, enum offload_kind kind)
{
    const struct sluice_plan *p = engine_plan(en);
    return kind == OFFLOAD_KV ? p->kv_bytes_per_token * (size_t)p->block_size : p->state_bytes_per_seq;
}

static void save(void *arg, enum offload_kind kind, int index, void *host)
{
    struct backend *b = engine_backend(arg);
    b->ops->read(b, host, place_of(arg, kind, index), bytes_of(arg, kind));
}

static void load(void *arg, enum offload_kind kind, int index, const void *host)
{
    struct backend *b = engine_backend(arg);
    b->ops->write(b, place_of(arg, kind, index), host, bytes_of(arg, kind));
}

struct offload *offload_for_engine(struct engine *en, const struct model_file *file,
                                   const struct sluice_options *o, void (*wake)(void *arg), void *wake_arg,
                                   struct err *e)
{
    const struct sluice_plan *p = engine_plan(en);
    struct offload_config c = {.dir = o->kv_offload_dir,
                               .limit = o->kv_offload_bytes,
                               .block_size = p->block_size,
                               .max_model_len = p->max_model_len,
                               .block_bytes = bytes_of(en, OFFLOAD_KV),
                               .state_bytes = p->state_snapshots > 0 ? p->state_bytes_per_seq : 0,
                               .write_blocks = p->offload_blocks,
                               .save = save,
                               .load = load,
                               .copy_arg = en,
                               .wake = wake,
                               .wake_arg = wake_arg};
    identify(en, file, o, c.model);
    return offload_open(&c, e);
}
