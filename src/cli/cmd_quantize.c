/* `sluice quantize`: a model file again, in fewer bits. Tensor after tensor is decoded, encoded by all
 * threads and written, a slab of rows at a time, so that memory does not grow with the model. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/str.h"
#include "cli/calibrate.h"
#include "cli/commands.h"
#include "cli/hf_gguf.h"
#include "cli/interrupt.h"
#include "cli/options.h"
#include "file/gguf_write.h"
#include "file/imatrix.h"
#include "quant/mix.h"
#include "quant/quantize.h"

#define SLAB_BYTES ((size_t)32 << 20) /* encoded at a time, about */
#define DAMPING    0.02f              /* inputs not seen in the text exist too */

struct quantizer {
    const struct model_file *file;
    struct pool *pool;
    struct gguf_writer *w;
    struct imatrix *imatrix;
    struct calibration *calibration;
    const struct tensor **order; /* [n_tensors] as they lie in the file */
    enum dtype *types;           /* [n_tensors] chosen */
    int n_layers;
    uint64_t bytes_by_type[DT_COUNT];
    int64_t n_weights;
    uint64_t n_bytes;
    int unweighted; /* matrices that had neither importance nor calibration, though one was given */
    double started;
    bool tty;
};

static int by_place(const void *a, const void *b)
{
    const struct tensor *x = *(const struct tensor *const *)a, *y = *(const struct tensor *const *)b;
    return (x->data > y->data) - (x->data < y->data);
}

static int64_t row_count(const struct tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i + 1 < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

static int64_t row_width(const struct tensor *t)
{
    return t->n_dims ? t->shape[t->n_dims - 1] : 1;
}

/* Everything but what the new file says otherwise. */
static void copy_metadata(struct quantizer *q, enum dtype target)
{
    static const char *const replaced[] = {"general.file_type", "general.quantization_version", "split.no",
                                           "split.count", "split.tensors.count"};
    for (int64_t i = 0; i < gguf_count(q->file->gguf); i++) {
        const char *key = gguf_key(q->file->gguf, i);
        bool skip = strncmp(key, "quantize.imatrix.", 17) == 0;
        for (size_t k = 0; k < sizeof replaced / sizeof replaced[0]; k++)
            skip |= strcmp(key, replaced[k]) == 0;
        if (!skip)
            gguf_writer_copy(q->w, q->file->gguf, i);
    }
    gguf_writer_u32(q->w, "general.file_type", mix_file_type(target));
    gguf_writer_u32(q->w, "general.quantization_version", 2);
}

static int declare(struct quantizer *q, enum dtype target, struct err *e)
{
    const struct model_file *f = q->file;
    q->order = mem_alloc((size_t)f->n_tensors * sizeof *q->order);
    q->types = mem_alloc((size_t)f->n_tensors * sizeof *q->types);
    for (int i = 0; i < f->n_tensors; i++)
        q->order[i] = &f->tensors[i];
    qsort(q->order, (size_t)f->n_tensors, sizeof *q->order, by_place);
    copy_metadata(q, target);
    for (int i = 0; i < f->n_tensors; i++) {
        const struct tensor *t = q->order[i];
        q->types[i] = mix_choose(target, t->name, t->n_dims, row_width(t), q->n_layers, t->dtype);
        if (q->types[i] != t->dtype && !dtype_info(t->dtype)->decodable)
            return err_set(e, ERR_UNSUPPORTED,
                           "%s: tensor \"%s\" has type %s, which this build cannot decode", f->path, t->name,
                           dtype_info(t->dtype)->name);
        gguf_writer_tensor(q->w, t->name, q->types[i], t->n_dims, t->shape);
    }
    return gguf_writer_begin(q->w, e);
}

static void show_progress(struct quantizer *q, int i, uint64_t done)
{
    if (!q->tty)
        return;
    uint64_t total = gguf_writer_data_bytes(q->w);
    fprintf(stderr, "\rWriting %.1f of %.1f MB, %s \033[K", (double)done / 1e6, (double)total / 1e6,
            q->order[i]->name);
    fflush(stderr);
}

/* What is known about the tensor's inputs, into the job. *buffer is to be freed. */
static int weigh(struct quantizer *q, const struct tensor *t, struct quantize_job *j, float **buffer,
                 struct err *e)
{
    *buffer = NULL;
    if (q->imatrix) {
        if (imatrix_find(q->imatrix, t->name, j->cols, &j->importance, e))
            return -1;
        q->unweighted += !j->importance;
    }
    if (!q->calibration)
        return 0;
    bool whole = false;
    struct error_feedback *f = calibration_find(q->calibration, t->name, &whole);
    if (!f) {
        q->unweighted++;
        return 0;
    }
    if (whole && (f->factored || feedback_factor(f, q->pool, DAMPING))) {
        j->feedback = f;
        return 0;
    }
    *buffer = mem_alloc((size_t)j->cols * sizeof **buffer);
    feedback_importance(f, *buffer);
    j->importance = *buffer;
    return 0;
}

static int encode_tensor(struct quantizer *q, int i, uint64_t *done, struct err *e)
{
    const struct tensor *t = q->order[i];
    struct quantize_job j = {.from = t->dtype, .to = q->types[i], .cols = row_width(t), .data = t->data};
    size_t from_bytes = dtype_row_bytes(j.from, j.cols), to_bytes = dtype_row_bytes(j.to, j.cols);
    int64_t rows = row_count(t), slab = (int64_t)(SLAB_BYTES / to_bytes) / QUANTIZE_TILE_ROWS;
    slab = (slab < 1 ? 1 : slab) * QUANTIZE_TILE_ROWS;
    slab = slab < rows ? slab : rows;
    float *importance = NULL;
    int rc = -1;
    j.out = mem_try_alloc((size_t)slab, to_bytes);
    j.scratch = mem_try_alloc((size_t)pool_threads(q->pool), quantize_scratch_floats(j.cols) * sizeof(float));
    if (!j.out || !j.scratch) {
        err_set(e, ERR_NO_MEMORY, "%s: tensor \"%s\": no memory for %lld rows of it", q->file->path, t->name,
                (long long)slab);
        goto done;
    }
    if (weigh(q, t, &j, &importance, e))
        goto done;
    for (int64_t row = 0; row < rows; row += slab) {
        j.rows = rows - row < slab ? rows - row : slab;
        j.data = (const uint8_t *)t->data + (size_t)row * from_bytes;
        pool_run(q->pool, quantize_tiles, &j, quantize_tile_count(j.rows), 1);
        if (j.bad_row) {
            err_set(
                e, ERR_INVALID,
                "%s: tensor \"%s\" holds NaN or infinity in row %lld, which no type of blocks can: the file "
                "is damaged",
                q->file->path, t->name, (long long)(row + j.bad_row - 1));
            goto done;
        }
        if (gguf_writer_data(q->w, i, (size_t)row * to_bytes, j.out, (size_t)j.rows * to_bytes, e))
            goto done;
        *done += (size_t)j.rows * to_bytes;
        show_progress(q, i, *done);
        if (interrupted) {
            interrupt_error(e);
            goto done;
        }
    }
    rc = 0;
done:
    free(j.out);
    free(j.scratch);
    free(importance);
    return rc;
}

static int write_tensors(struct quantizer *q, struct err *e)
{
    uint64_t done = 0;
    for (int i = 0; i < q->file->n_tensors; i++) {
        const struct tensor *t = q->order[i];
        size_t bytes = gguf_writer_tensor_bytes(q->w, i);
        show_progress(q, i, done);
        if (q->types[i] == t->dtype) {
            if (gguf_writer_data(q->w, i, 0, t->data, bytes, e))
                return -1;
            done += bytes;
        } else if (encode_tensor(q, i, &done, e)) {
            return -1;
        }
        model_file_drop(q->file, t);
        q->n_weights += row_count(t) * row_width(t);
        q->n_bytes += bytes;
        q->bytes_by_type[q->types[i]] += bytes;
        if (interrupted)
            return interrupt_error(e);
    }
    return gguf_writer_finish(q->w, e);
}

static void report(const struct quantizer *q, const char *out)
{
    printf("%s: %.1f M weights, %.1f MB, %.3f bits a weight, in %.1f s\n", out, (double)q->n_weights / 1e6,
           (double)q->n_bytes / 1e6, (double)q->n_bytes * 8 / (double)q->n_weights, clock_now() - q->started);
    for (int t = 0; t < DT_COUNT; t++)
        if (q->bytes_by_type[t])
            printf("  %-6s %10.1f MB\n", dtype_info(t)->name, (double)q->bytes_by_type[t] / 1e6);
}

/* The directory as a GGUF file of the same bits beside OUT, opened and without a name: the disk has it back
 * when it is closed. Closes f. */
static struct model_file *through_gguf(struct model_file *f, const char *out, struct err *e)
{
    struct str path = {0};
    str_addf(&path, "%s.source-%d", out, (int)getpid());
    struct model_file *made = NULL;
    if (hf_write_gguf(f, str_text(&path), e) == 0) {
        made = model_file_open(str_text(&path), e);
        unlink(str_text(&path));
    }
    str_free(&path);
    model_file_close(f);
    return made;
}

int cmd_quantize(int argc, char **argv)
{
    const char *in = NULL, *out = NULL, *type = NULL, *imatrix = NULL;
    int threads = 0;
    struct calibrate_options calibrating = {.context = 512, .chunks = 32};
    const struct option_positional words[] = {
        {"IN", &in, true, "a .gguf file or a Hugging Face directory, best in 16 bits"},
        {"OUT", &out, true, "the .gguf file to write"},
        {0}};
    const struct option_spec options[] = {
        {.name = "type",
         .text = &type,
         .choices = MIX_NAMES "|f16|bf16|f32",
         .value = "TYPE",
         .help = "of most matrices; embedding, head and other sensitive ones get more bits "
                 "(docs/quantization.md)"},
        {.name = "calibrate",
         .text = &calibrating.text_path,
         .value = "TEXT",
         .help = "run this text through the model first, and keep errors small as they show in its layers' "
                 "outputs: the best quality. Any text like what the model will see, some 100 KB"},
        {.name = "calibrate-chunks",
         .num = &calibrating.chunks,
         .min = 0,
         .max = 1 << 20,
         .value = "N",
         .help = "chunks of 512 tokens of it that are used, 0 = all"},
        {.name = "imatrix",
         .text = &imatrix,
         .value = "FILE",
         .help = "weigh errors by llama.cpp's importance matrix instead"},
        {.name = "threads",
         .num = &threads,
         .min = 0,
         .max = 1024,
         .initial = "one a CPU",
         .value = "N",
         .help = "threads that encode"},
        {0},
    };
    const struct option_command command = {
        "quantize", "Writes a model in fewer bits a weight, as a GGUF file that llama.cpp reads too.", words,
        options};
    int status = options_parse(&command, argc, argv);
    if (status >= 0)
        return status;
    if (!type)
        return options_usage_error(&command, "--type is missing: one of " MIX_NAMES);
    if (imatrix && calibrating.text_path)
        return options_usage_error(&command,
                                   "--imatrix and --calibrate are two ways to the same end: give one");

    status = EXIT_FAILED;
    struct err e = {0};
    struct quantizer q = {.tty = isatty(STDERR_FILENO), .started = clock_now()};
    enum dtype target = (enum dtype)mix_type(type);
    interrupt_watch();
    log_set_level(LOG_LEVEL_WARN);
    struct model_file *file = model_file_open(in, &e);
    if (!file)
        goto done;
    if (file->kind == MODEL_FILE_HF && !(file = through_gguf(file, out, &e)))
        goto done;
    q.file = file;
    int64_t layers = 0;
    char key[128];
    const char *arch = gguf_str(file->gguf, "general.architecture", NULL);
    snprintf(key, sizeof key, "%.100s.block_count", arch ? arch : "");
    if (gguf_i64(file->gguf, key, &layers) && layers > 0 && layers < 100000)
        q.n_layers = (int)layers;
    calibrating.threads = threads;
    calibrating.show = q.tty;
    if (!(q.pool = pool_create(threads ? threads : pool_cpu_count(), &e)) ||
        (imatrix && !(q.imatrix = imatrix_open(imatrix, &e))) ||
        (calibrating.text_path && !(q.calibration = calibrate(file, &calibrating, &e))) ||
        !(q.w = gguf_writer_open(out, &e)) || declare(&q, target, &e) || write_tensors(&q, &e))
        goto done;
    status = 0;
done:
    if (q.tty)
        fputs("\r\033[K", stderr);
    if (status == 0)
        report(&q, out);
    else
        fprintf(stderr, "sluice quantize: %s\n", e.msg);
    gguf_writer_close(q.w);
    imatrix_close(q.imatrix);
    calibration_free(q.calibration);
    pool_free(q.pool);
    free(q.order);
    free(q.types);
    model_file_close(file);
    return status && interrupted ? 128 + SIGINT : status;
}
