/* `sluice eval`: how well a model predicts a text, and how near it comes to another one, usually the 16-bit
 * model that it was quantised from.
 *
 * As is customary (llama.cpp's tools do the same), the text is cut into chunks of --context tokens, each is
 * computed for itself, and the predictions made in its second half are scored, so that each has at least half
 * a chunk before it. Perplexity is exp of the mean negative log-likelihood. Against a reference:
 * Kullback-Leibler divergence Σ p log(p / q) of the model's distribution q from the reference's p at each
 * scored position, and how often both hold the same token most likely. Each is a mean over positions with its
 * standard error. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "cli/commands.h"
#include "cli/forward.h"
#include "cli/options.h"
#include "cli/text_chunks.h"
#include "file/model_file.h"

/* What one scored position tells. */
struct score {
    float nll, reference_nll; /* -log likelihood of the token that came */
    float kl;
    bool same_top;
};

struct scoring {
    const float *logits, *reference; /* [n, vocab]; reference may be NULL */
    const int32_t *next;             /* [n] the tokens that came */
    int vocab;
    struct score *out; /* [n] */
};

static int top_of(const float *row, int vocab)
{
    int top = 0;
    for (int i = 1; i < vocab; i++)
        if (row[i] > row[top])
            top = i;
    return top;
}

static double log_sum(const float *row, int vocab, float most)
{
    double sum = 0;
    for (int i = 0; i < vocab; i++)
        sum += (double)expf(row[i] - most);
    return (double)most + log(sum);
}

static void score_rows(void *arg, int64_t begin, int64_t end, int thread)
{
    (void)thread;
    const struct scoring *s = arg;
    for (int64_t r = begin; r < end; r++) {
        const float *q = s->logits + r * s->vocab, *p = s->reference ? s->reference + r * s->vocab : NULL;
        int top = top_of(q, s->vocab);
        double q_sum = log_sum(q, s->vocab, q[top]);
        struct score out = {.nll = (float)(q_sum - (double)q[s->next[r]])};
        if (p) {
            int reference_top = top_of(p, s->vocab);
            double p_sum = log_sum(p, s->vocab, p[reference_top]), kl = 0, shift = q_sum - p_sum;
            for (int i = 0; i < s->vocab; i++)
                kl += (double)expf((float)((double)p[i] - p_sum)) * ((double)p[i] - (double)q[i] + shift);
            out.kl = (float)(kl > 0 ? kl : 0);
            out.reference_nll = (float)(p_sum - (double)p[s->next[r]]);
            out.same_top = top == reference_top;
        }
        s->out[r] = out;
    }
}

struct mean {
    double value, error; /* standard error */
};

static struct mean mean_of(const struct score *s, int n, double (*get)(const struct score *s))
{
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++)
        sum += get(&s[i]);
    double mean = sum / n;
    for (int i = 0; i < n; i++)
        squares += (get(&s[i]) - mean) * (get(&s[i]) - mean);
    return (struct mean){mean, n > 1 ? sqrt(squares / (n - 1) / n) : 0};
}

static double get_nll(const struct score *s)
{
    return (double)s->nll;
}
static double get_reference_nll(const struct score *s)
{
    return (double)s->reference_nll;
}
static double get_nll_excess(const struct score *s)
{
    return (double)s->nll - (double)s->reference_nll;
}
static double get_kl(const struct score *s)
{
    return (double)s->kl;
}
static double get_same_top(const struct score *s)
{
    return s->same_top;
}

static int by_kl(const void *a, const void *b)
{
    float x = ((const struct score *)a)->kl, y = ((const struct score *)b)->kl;
    return (x > y) - (x < y);
}

/* The KL that a share q of the positions do not pass. Sorts s. */
static double kl_quantile(struct score *s, int n, double q)
{
    qsort(s, (size_t)n, sizeof *s, by_kl);
    double at = q * (n - 1);
    int i = (int)at;
    double next = i + 1 < n ? (double)s[i + 1].kl : (double)s[i].kl;
    return (double)s[i].kl + (at - i) * (next - (double)s[i].kl);
}

struct eval {
    const char *model_path, *reference_path, *text_path;
    struct forward *model, *reference; /* reference may be NULL */
    struct text_chunks chunks;
    struct score *scores; /* [n_chunks * scored] */
    int scored;           /* positions of a chunk */
    int n;                /* scored so far */
    bool tty;
};

static void show_progress(const struct eval *v, int chunk, double seconds)
{
    struct mean nll = mean_of(v->scores, v->n, get_nll);
    char kl[64] = "";
    if (v->reference) {
        struct mean m = mean_of(v->scores, v->n, get_kl);
        snprintf(kl, sizeof kl, ", KL %.5f ± %.5f", m.value, m.error);
    }
    double tokens = (double)(chunk + 1) * v->chunks.context;
    fprintf(stderr, "\rchunk %d of %d, %.0f tokens/s, perplexity %.4f%s   ", chunk + 1, v->chunks.n_chunks,
            tokens / seconds, exp(nll.value), kl);
    fflush(stderr);
}

static void run(struct eval *v)
{
    double started = clock_now();
    int context = v->chunks.context, vocab = model_config(forward_model(v->model))->vocab;
    for (int i = 0; i < v->chunks.n_chunks; i++) {
        const int32_t *ids = text_chunk(&v->chunks, i);
        /* the last token's prediction has nothing to be compared with: it is not asked for */
        struct scoring s = {.logits = forward_run(v->model, ids, context - 1, v->scored),
                            .next = ids + context - v->scored,
                            .vocab = vocab,
                            .out = v->scores + v->n};
        if (v->reference)
            s.reference = forward_run(v->reference, ids, context - 1, v->scored);
        struct backend *b = forward_backend(v->model);
        b->ops->parallel(b, score_rows, &s, v->scored);
        v->n += v->scored;
        if (v->tty)
            show_progress(v, i, clock_now() - started);
    }
    if (v->tty)
        fputs("\r\033[K", stderr);
}

static void report(struct eval *v, bool as_json)
{
    struct mean nll = mean_of(v->scores, v->n, get_nll);
    double perplexity = exp(nll.value);
    struct mean ref = {0}, excess = {0}, kl = {0}, top = {0};
    double median = 0, p999 = 0, most = 0;
    if (v->reference) {
        ref = mean_of(v->scores, v->n, get_reference_nll);
        excess = mean_of(v->scores, v->n, get_nll_excess);
        kl = mean_of(v->scores, v->n, get_kl);
        top = mean_of(v->scores, v->n, get_same_top);
        median = kl_quantile(v->scores, v->n, 0.5);
        p999 = kl_quantile(v->scores, v->n, 0.999);
        most = kl_quantile(v->scores, v->n, 1);
    }
    if (as_json) {
        json_t *o =
            json_pack("{s:s, s:s, s:i, s:i, s:i, s:f, s:f}", "model", v->model_path, "text", v->text_path,
                      "context", v->chunks.context, "chunks", v->chunks.n_chunks, "scored", v->n,
                      "perplexity", perplexity, "perplexity_error", perplexity * nll.error);
        if (o && v->reference)
            json_object_set_new(o, "against",
                                json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "model",
                                          v->reference_path, "perplexity", exp(ref.value), "log_ratio",
                                          excess.value, "log_ratio_error", excess.error, "kl_mean", kl.value,
                                          "kl_error", kl.error, "kl_median", median, "kl_p999", p999,
                                          "kl_max", most, "top1", top.value, "top1_error", top.error));
        char *text = json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(8));
        puts(text ? text : "{}");
        free(text);
        json_decref(o);
        return;
    }
    printf("text            %s: %d chunks of %d tokens, %d predictions scored (those in the second halves)\n",
           v->text_path, v->chunks.n_chunks, v->chunks.context, v->n);
    printf("perplexity      %.4f ± %.4f\n", perplexity, perplexity * nll.error);
    if (!v->reference)
        return;
    printf("reference's     %.4f; log of the ratio %+.5f ± %.5f\n", exp(ref.value), excess.value,
           excess.error);
    printf("KL divergence   mean %.6f ± %.6f, median %.6f, 99.9 %% below %.4f, max %.4f\n", kl.value,
           kl.error, median, p999, most);
    printf("same top token  %.2f ± %.2f %%\n", 100 * top.value, 100 * top.error);
}

/* The text is encoded once, so both models must mean the same by an id. */
static int check_same_tokens(const struct eval *v, const struct tokenizer *t,
                             const struct model_file *reference, struct err *e)
{
    struct tokenizer *other = tokenizer_open(reference, e);
    if (!other)
        return err_prefix(e, "%s", v->reference_path);
    int n = tokenizer_size(t) < tokenizer_size(other) ? tokenizer_size(t) : tokenizer_size(other), rc = 0;
    for (int32_t id = 0; id < n && rc == 0; id++) {
        size_t a_len, b_len;
        const char *a = tokenizer_name(t, id, &a_len), *b = tokenizer_name(other, id, &b_len);
        if (a_len != b_len || memcmp(a, b, a_len) != 0)
            rc = err_set(
                e, ERR_INVALID,
                "token %d is \"%.*s\" in %s and \"%.*s\" in %s: models with different tokenizers cannot "
                "be compared",
                id, (int)a_len, a, v->model_path, (int)b_len, b, v->reference_path);
    }
    tokenizer_free(other);
    return rc;
}

static int open_all(struct eval *v, struct forward_options *o, int chunks, struct err *e)
{
    int rc = -1;
    struct forward_options plain = *o; /* the reference's: types of caches and states are as by default */
    plain.kv_dtype = plain.state_dtype = plain.conv_dtype = NULL;
    struct tokenizer *t = NULL;
    struct model_file *file = model_file_open(v->model_path, e), *reference = NULL;
    if (!file || !(t = tokenizer_open(file, e)))
        goto done;
    if (v->reference_path && (!(reference = model_file_open(v->reference_path, e)) ||
                              !(v->reference = forward_open(reference, &plain, e))))
        goto done;
    if (!(v->model = forward_open(file, o, e)))
        goto done;
    int vocab = model_config(forward_model(v->model))->vocab;
    if (v->reference && model_config(forward_model(v->reference))->vocab != vocab) {
        err_set(e, ERR_INVALID, "%s has %d tokens and %s has %d: they cannot be compared", v->model_path,
                vocab, v->reference_path, model_config(forward_model(v->reference))->vocab);
        goto done;
    }
    if (reference && check_same_tokens(v, t, reference, e))
        goto done;
    rc = text_chunks_read(&v->chunks, v->text_path, t, vocab, o->max_tokens, chunks, e);
done:
    tokenizer_free(t);
    model_file_close(file);
    model_file_close(reference);
    return rc;
}

int cmd_eval(int argc, char **argv)
{
    struct eval v = {.tty = isatty(STDERR_FILENO)};
    int context = 512, chunks = 0;
    bool as_json = false;
    struct forward_options o = {0};
    const struct option_positional words[] = {
        {"MODEL", &v.model_path, true, "a .gguf file or a Hugging Face directory"}, {0}};
    const struct option_spec options[] = {
        {.name = "text", .text = &v.text_path, .value = "FILE", .help = "what to predict: plain text, UTF-8"},
        {.name = "against",
         .text = &v.reference_path,
         .value = "MODEL16",
         .help = "also measure how far the predictions are from this model's; both are loaded"},
        {.name = "context",
         .num = &context,
         .min = 4,
         .max = 1 << 20,
         .value = "N",
         .help = "tokens of a chunk; predictions in its second half are scored"},
        {.name = "chunks",
         .num = &chunks,
         .min = 0,
         .max = 1 << 30,
         .initial = "all",
         .value = "N",
         .help = "only so many chunks, from the text's beginning"},
        {.name = "kv-cache-dtype",
         .text = &o.kv_dtype,
         .initial = "float16",
         .value = "TYPE",
         .help = "MODEL's type of cached keys and values, as in serve; not MODEL16's"},
        {.name = "mamba-ssm-cache-dtype",
         .text = &o.state_dtype,
         .initial = "float32",
         .value = "TYPE",
         .help = "MODEL's type of recurrent states"},
        {.name = "mamba-cache-dtype",
         .text = &o.conv_dtype,
         .initial = "float32",
         .value = "TYPE",
         .help = "MODEL's type of what convolutions remember"},
        {.name = "json", .flag = &as_json, .help = "print the result as JSON"},
        {.name = "threads",
         .num = &o.threads,
         .min = 0,
         .max = 1024,
         .initial = "one a CPU",
         .value = "N",
         .help = "threads that compute"},
        {.name = "cpu-level",
         .text = &o.cpu_level,
         .choices = "reference|avx2|avx512",
         .initial = "best",
         .value = "LEVEL",
         .help = "instruction set, at most what the CPU has"},
        {0},
    };
    const struct option_command command = {"eval",
                                           "Measures how well a model predicts a text (perplexity) and, with "
                                           "--against, how near its predictions "
                                           "come to another model's (KL divergence, agreement).",
                                           words, options};
    int status = options_parse(&command, argc, argv);
    if (status >= 0)
        return status;
    if (!v.text_path)
        return options_usage_error(&command, "--text is missing: a file to predict");
    log_set_level(LOG_LEVEL_WARN);
    v.scored = context - 1 - context / 2;
    o.max_tokens = context;
    o.max_logits = v.scored;
    struct err e;
    status = EXIT_FAILED;
    if (open_all(&v, &o, chunks, &e)) {
        fprintf(stderr, "sluice eval: %s\n", e.msg);
        goto done;
    }
    v.scores = mem_zalloc((size_t)v.chunks.n_chunks * (size_t)v.scored, sizeof *v.scores);
    run(&v);
    report(&v, as_json);
    status = 0;
done:
    free(v.scores);
    text_chunks_free(&v.chunks);
    forward_close(v.model);
    forward_close(v.reference);
    return status;
}
