/* `sluice make-model`: a checkpoint of a released model's shapes with random weights, so that speed, memory
 * and loading can be measured without the model itself. All threads make parts of a tensor and write them to
 * their place in the file. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "cli/random_weights.h"
#include "text/write_gguf.h"

#define PART_BYTES ((size_t)1 << 20) /* what a thread makes at a time, about */

struct maker {
    struct gguf_writer *w;
    enum dtype dtype; /* of matrices */
    uint64_t seed;
    struct random_tensor *tensors; /* [n_tensors], as declared */
    int n_tensors;
    int64_t n_weights;

    int current;         /* tensor being made */
    size_t part;         /* bytes of its parts */
    uint8_t *buffers;    /* [threads, PART_BYTES] */
    _Atomic bool failed; /* with the first reason in *e */
    struct err *e;
    _Atomic uint64_t done;
    double started, shown;
    bool tty;
};

static void declare(void *arg, const char *name, enum weight_kind kind, int n_dims, const int64_t *shape)
{
    struct maker *m = arg;
    struct random_tensor t = {.dtype = kind == WEIGHTS_MATRIX ? m->dtype : DT_F32,
                              .kind = kind,
                              .cols = shape[n_dims - 1],
                              .key = random_key(m->seed, m->n_tensors)};
    gguf_writer_tensor(m->w, name, t.dtype, n_dims, shape);
    m->tensors = mem_realloc(m->tensors, (size_t)m->n_tensors + 1, sizeof *m->tensors);
    m->tensors[m->n_tensors++] = t;
    m->n_weights += n_dims == 2 ? shape[0] * shape[1] : shape[0];
}

static void show_progress(struct maker *m)
{
    double now = clock_now(), done = (double)atomic_load(&m->done);
    if (!m->tty || now - m->shown < 0.1)
        return;
    m->shown = now;
    fprintf(stderr, "\rWriting %8.1f of %.1f MB, %.2f GB/s ", done / 1e6,
            (double)gguf_writer_data_bytes(m->w) / 1e6, done / 1e9 / (now - m->started + 1e-9));
    fflush(stderr);
}

/* Parts begin … end-1 of the current tensor. */
static void make_parts(void *arg, int64_t begin, int64_t end, int thread)
{
    struct maker *m = arg;
    size_t bytes = gguf_writer_tensor_bytes(m->w, m->current);
    uint8_t *buffer = m->buffers + (size_t)thread * PART_BYTES;
    for (int64_t i = begin; i < end && !atomic_load(&m->failed) && !interrupted; i++) {
        size_t offset = (size_t)i * m->part, n = bytes - offset < m->part ? bytes - offset : m->part;
        struct err e;
        random_weights(&m->tensors[m->current], offset, buffer, n);
        if (gguf_writer_data(m->w, m->current, offset, buffer, n, &e) && !atomic_exchange(&m->failed, true))
            *m->e = e;
        atomic_fetch_add(&m->done, n);
        if (thread == 0)
            show_progress(m);
    }
}

static int write_weights(struct maker *m, struct pool *pool, struct err *e)
{
    m->e = e;
    m->buffers = mem_alloc((size_t)pool_threads(pool) * PART_BYTES);
    m->started = clock_now();
    for (m->current = 0; m->current < m->n_tensors && !m->failed && !interrupted; m->current++) {
        size_t unit = random_unit_bytes(m->tensors[m->current].dtype);
        m->part = PART_BYTES / unit * unit;
        size_t bytes = gguf_writer_tensor_bytes(m->w, m->current);
        pool_run(pool, make_parts, m, (int64_t)((bytes + m->part - 1) / m->part), 1);
    }
    free(m->buffers);
    if (m->tty)
        fputs(m->failed || interrupted ? "\r\033[K" : "\r\033[KWaiting for the disk …", stderr);
    if (m->failed)
        return -1;
    if (interrupted)
        return interrupt_error(e);
    int rc = gguf_writer_finish(m->w, e);
    if (m->tty)
        fputs("\r\033[K", stderr);
    return rc;
}

static int write_tokenizer(const struct model_like *like, const char *path, struct gguf_writer *w,
                           struct err *e)
{
    if (!path) {
        tokenizer_write_bytes(like->pre, like->vocab, w);
        return 0;
    }
    struct model_file *f = model_file_open_tokenizer(path, e);
    if (!f)
        return -1;
    int rc = tokenizer_write_gguf(f, like->vocab, w, e);
    model_file_close(f);
    return rc;
}

int cmd_make_model(int argc, char **argv)
{
    const char *like_name = NULL, *bits = "16", *tokenizer = NULL, *out = NULL;
    int layers = 0, threads = 0;
    bool k_quants = false, mtp = false;
    uint64_t seed = 0;
    const struct option_positional words[] = {{"OUT", &out, true, "the .gguf file to write"}, {0}};
    const struct option_spec options[] = {
        {.name = "like",
         .text = &like_name,
         .choices = MODEL_LIKE_NAMES,
         .value = "NAME",
         .help = "whose shapes"},
        {.name = "layers",
         .num = &layers,
         .min = 1,
         .max = 1000,
         .initial = "the model's",
         .value = "N",
         .help = "so many layers instead"},
        {.name = "bits",
         .text = &bits,
         .choices = "16|8|4",
         .value = "N",
         .help = "a weight of a matrix: 16 = BF16, 8 = Q8_0, 4 = Q4_0"},
        {.name = "k-quants", .flag = &k_quants, .help = "with --bits 4: Q4_K instead of Q4_0"},
        {.name = "mtp",
         .flag = &mtp,
         .help = "add the block that drafts tokens (multi-token prediction); Qwen3.5 only"},
        {.name = "tokenizer",
         .text = &tokenizer,
         .initial = "made of bytes",
         .value = "PATH",
         .help = "directory of a tokenizer.json, or that file; its chat template comes along"},
        {.name = "seed", .big = &seed, .value = "N", .help = "the same seed gives the same file"},
        {.name = "threads",
         .num = &threads,
         .min = 0,
         .max = 1024,
         .initial = "one a CPU",
         .value = "N",
         .help = "threads that make weights"},
        {0},
    };
    const struct option_command command = {
        "make-model",
        "Writes a GGUF file of a released model's shapes with random weights, to measure speed, memory and "
        "loading without that model. Its answers mean nothing.",
        words, options};
    int status = options_parse(&command, argc, argv);
    if (status >= 0)
        return status;
    if (!like_name)
        return options_usage_error(&command, "--like is missing: one of %s", MODEL_LIKE_NAMES);
    struct model_like like = *model_like_find(like_name);
    if (k_quants && strcmp(bits, "4") != 0)
        return options_usage_error(&command, "--k-quants needs --bits 4");
    if (mtp && !like.interval)
        return options_usage_error(&command, "--mtp: %s has no such block", like_name);
    like.layers = layers ? layers : like.layers;
    like.mtp = mtp;

    status = EXIT_FAILED;
    struct err e = {0};
    struct maker m = {.seed = seed, .tty = isatty(STDERR_FILENO)};
    m.dtype = *bits == '8' ? DT_Q8_0 : *bits == '4' ? k_quants ? DT_Q4_K : DT_Q4_0 : DT_BF16;
    struct pool *pool = NULL;
    interrupt_watch();

    if (!(pool = pool_create(threads ? threads : pool_cpu_count(), &e)) || !(m.w = gguf_writer_open(out, &e)))
        goto done;
    model_like_metadata(&like, m.dtype, m.w);
    if (write_tokenizer(&like, tokenizer, m.w, &e))
        goto done;
    model_like_tensors(&like, declare, &m);
    if (gguf_writer_begin(m.w, &e) || write_weights(&m, pool, &e))
        goto done;
    double seconds = clock_now() - m.started, bytes = (double)gguf_writer_data_bytes(m.w);
    printf("%s: %s, %d layers, %.1f M parameters as %s, %.1f MB in %.1f s (%.2f GB/s)\n", out, like.title,
           like.layers, (double)m.n_weights / 1e6, dtype_info((int)m.dtype)->name, bytes / 1e6, seconds,
           bytes / 1e9 / seconds);
    status = 0;
done:
    if (status)
        fprintf(stderr, "sluice make-model: %s\n", e.msg);
    gguf_writer_close(m.w);
    free(m.tensors);
    pool_free(pool);
    return status && interrupted ? 128 + SIGINT : status;
}
