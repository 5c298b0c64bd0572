/* The model runs on the usual back end, whose matmul is replaced by one that looks at its input first.
 * Matrices that read the same input (q, k and v; gate and up) share what is kept of it. A step of one token
 * finds out which do, before memory is taken. */
#include "cli/calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/forward.h"
#include "cli/text_chunks.h"

enum { MAX_WIDTH = 4096 };

/* One place where the model multiplies. */
struct site {
    const struct mat *first; /* the first of its matrices: how a call is recognised */
    int64_t cols;
    struct error_feedback *feedback; /* NULL until memory was taken */
};

struct user {
    char *name; /* of the file's tensor */
    const struct mat *w;
    int site; /* -1: not met */
};

struct calibration {
    struct backend_ops
        ops; /* first: the back end's table, with matmul replaced; how the replacement finds this */
    const struct backend_ops *real;
    struct pool *pool;
    struct site *sites; /* [n_sites] */
    struct user *users; /* [n_users] */
    int n_sites, n_users;
    int64_t tokens, width;
};

static int find_site(struct calibration *c, const struct mat_use *uses, int n_uses)
{
    for (int i = 0; i < c->n_sites; i++)
        if (c->sites[i].first == uses[0].w)
            return i;
    c->sites = mem_realloc(c->sites, (size_t)c->n_sites + 1, sizeof *c->sites);
    c->sites[c->n_sites] = (struct site){.first = uses[0].w, .cols = uses[0].w->cols};
    for (int u = 0; u < n_uses; u++)
        for (int i = 0; i < c->n_users; i++)
            if (c->users[i].w == uses[u].w)
                c->users[i].site = c->n_sites;
    return c->n_sites++;
}

static void watched_matmul(struct backend *b, const float *x, int n_tokens, struct mat_use *uses, int n_uses)
{
    struct calibration *c = (struct calibration *)(void *)b->ops;
    int site = find_site(c, uses, n_uses);
    if (c->sites[site].feedback)
        feedback_add(c->sites[site].feedback, c->pool, x, n_tokens);
    c->real->matmul(b, x, n_tokens, uses, n_uses);
}

static void add_user(void *arg, const char *name, const struct mat *w)
{
    struct calibration *c = arg;
    c->users = mem_realloc(c->users, (size_t)c->n_users + 1, sizeof *c->users);
    c->users[c->n_users++] = (struct user){.name = mem_strdup(name), .w = w, .site = -1};
}

static bool is_head(const char *name)
{
    return strcmp(name, "token_embd.weight") == 0 || strcmp(name, "output.weight") == 0;
}

/* The head sees few of the tokens and gets many bits: its inputs' sizes are enough. */
static int64_t site_width(const struct calibration *c, int site, int64_t width)
{
    for (int i = 0; i < c->n_users; i++)
        if (c->users[i].site == site && is_head(c->users[i].name))
            return FEEDBACK_STEP;
    return width;
}

/* Takes memory for all sites, in blocks as wide as fit. */
static int prepare_sites(struct calibration *c, struct err *e)
{
    size_t granted = mem_available() / 4 * 3, bytes = 0;
    for (c->width = MAX_WIDTH; c->width >= FEEDBACK_STEP; c->width /= 2) {
        bytes = 0;
        for (int i = 0; i < c->n_sites; i++)
            bytes += feedback_bytes(c->sites[i].cols, site_width(c, i, c->width));
        if (bytes <= granted)
            break;
    }
    if (c->width < FEEDBACK_STEP)
        return err_set(
            e, ERR_NO_MEMORY,
            "calibration needs %.2f GiB beside the model, and %.2f are free: use --imatrix instead",
            (double)bytes / 0x1p30, (double)granted / 0x1p30);
    for (int i = 0; i < c->n_sites; i++) {
        c->sites[i].feedback = feedback_create(c->sites[i].cols, site_width(c, i, c->width));
        if (!c->sites[i].feedback)
            return err_set(e, ERR_NO_MEMORY, "the system refused %.2f GiB for calibration",
                           (double)bytes / 0x1p30);
    }
    return 0;
}

static void run(struct calibration *c, struct forward *f, const struct text_chunks *text, bool show)
{
    double started = clock_now();
    for (int i = 0; i < text->n_chunks; i++) {
        forward_run(f, text_chunk(text, i), text->context, text->context / 4);
        c->tokens += text->context;
        if (show)
            fprintf(stderr, "\rCalibrating: chunk %d of %d, %.0f tokens/s ", i + 1, text->n_chunks,
                    (double)c->tokens / (clock_now() - started));
    }
    if (show)
        fputs("\r\033[K", stderr);
}

struct calibration *calibrate(const struct model_file *file, const struct calibrate_options *o, struct err *e)
{
    struct calibration *c = mem_zalloc(1, sizeof *c);
    struct forward_options fo = {
        .threads = o->threads, .max_tokens = o->context, .max_logits = o->context / 4};
    struct text_chunks text = {0};
    struct forward *f = NULL;
    int rc = -1;
    struct tokenizer *t = tokenizer_open(file, e);
    if (!t || !(c->pool = pool_create(o->threads ? o->threads : pool_cpu_count(), e)) ||
        !(f = forward_open(file, &fo, e)) ||
        text_chunks_read(&text, o->text_path, t, model_config(forward_model(f))->vocab, o->context, o->chunks,
                         e))
        goto done;
    struct backend *b = forward_backend(f);
    model_each_mat(forward_model(f), add_user, c);
    c->real = b->ops;
    c->ops = *b->ops;
    c->ops.matmul = watched_matmul;
    b->ops = &c->ops;
    forward_run(f, text.ids.ids, 1, 1);
    if (prepare_sites(c, e) == 0) {
        run(c, f, &text, o->show);
        rc = 0;
    }
    b->ops = c->real;
done:
    forward_close(f);
    text_chunks_free(&text);
    tokenizer_free(t);
    if (rc) {
        calibration_free(c);
        return NULL;
    }
    return c;
}

void calibration_free(struct calibration *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n_sites; i++)
        feedback_free(c->sites[i].feedback);
    for (int i = 0; i < c->n_users; i++)
        free(c->users[i].name);
    pool_free(c->pool);
    free(c->sites);
    free(c->users);
    free(c);
}

struct error_feedback *calibration_find(struct calibration *c, const char *name, bool *whole)
{
    for (int i = 0; i < c->n_users; i++) {
        if (c->users[i].site < 0 || strcmp(c->users[i].name, name) != 0)
            continue;
        struct error_feedback *f = c->sites[c->users[i].site].feedback;
        *whole = !is_head(name) && f->n > 0;
        return f;
    }
    return NULL;
}
