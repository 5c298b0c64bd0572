/* `sluice batch -i IN -o OUT MODEL`: answers a file of requests, without HTTP. All of the machine goes into
 * throughput: a worker reads requests ahead of their turn, so that the engine, whose steps this thread runs,
 * always finds more than a full batch waiting.
 *
 * Answers end in any order and are written in the input's. One that is done before its turn is held, and does
 * not count as in flight: a long answer at the front must not drain the batch behind it. */
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "api/generation.h"
#include "api/json_write.h"
#include "api/protocols.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/batch_files.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/served_model.h"
#include "http/workers.h"

#define MAX_HELD_BYTES ((size_t)512 << 20) /* of answers that wait for one before them */

static volatile sig_atomic_t stop_signal;

static void on_signal(int number)
{
    stop_signal = number;
}

/* A line of the input from the moment a worker gets it until its answer is written. */
struct item {
    struct job job; /* first */
    struct batch *batch;
    size_t line;
    char id[40]; /* of the request; its answer's is derived from it */
    /* what the worker made: one of these */
    struct generation *generation;
    struct api_error error; /* status != 0 */
    struct str answer;      /* the whole output line, once it is there */
    struct item *next;      /* in the input's order */
};

struct batch {
    struct served_model model;
    struct batch_input in;
    struct batch_output out;
    int max_inflight;
    uint64_t run; /* random: makes ids of this run its own */

    struct workers *workers;
    sem_t news; /* posted when a worker is done with a line */

    size_t next;               /* the line that begins next */
    struct item *first, *last; /* lines begun and not written */
    struct item **live;        /* [n_live] of these, the ones that the engine has; room for max_inflight */
    int n_live, n_inflight;    /* in flight: with the worker or live */
    size_t held_bytes;

    size_t done, failed; /* lines that are answered, written or held; of these, errors. Earlier runs' too */
};

/* --- one line ------------------------------------------------------------------------------------- */

/* On the worker: reads line, body and prompt and hands it to the engine, or says in it->error why not. */
static void begin(struct item *it, const json_t *line)
{
    const char *method = json_string_value(json_object_get(line, "method"));
    const char *url = json_string_value(json_object_get(line, "url"));
    const struct protocol *protocol = protocol_of(url);
    if (!protocol) {
        api_fail(&it->error, 404, "NotFoundError", "url",
                 "the url \"%.100s\" cannot be served in a batch: it must be " PROTOCOL_PATHS, url);
        return;
    }
    if (strcmp(method, "POST") != 0) {
        api_fail(&it->error, 405, "Method Not Allowed", "method", "the method of %s is POST, not \"%.20s\"",
                 url, method);
        return;
    }
    const struct api_model *m = &it->batch->model.api;
    struct api_request *r = protocol->read(m, json_object_get(line, "body"), it->id, false, &it->error);
    if (!r)
        return;
    if (r->stream) {
        api_request_free(r);
        api_fail(&it->error, 400, "BadRequestError", "stream",
                 "an answer in a batch cannot be streamed: leave out stream");
        return;
    }
    it->generation = generation_start(m, r, clock_now(), &it->error);
}

/* Bodies may be nested as deep as the server takes them, and a line is one level more. */
static int line_depth(const struct batch *b)
{
    return b->model.api.limits.max_json_depth + 1;
}

static void run_job(struct job *j)
{
    struct item *it = (struct item *)j;
    struct err e;
    json_t *line = batch_input_read(&it->batch->in, it->line, line_depth(it->batch), &e);
    if (line)
        begin(it, line);
    else
        api_fail(&it->error, 500, "InternalServerError", NULL, "%s", e.msg);
    json_decref(line);
}

static void tell(void *arg)
{
    sem_post(&((struct batch *)arg)->news);
}

/* The answer is there: body, or it->error. */
static void finish(struct batch *b, struct item *it, const struct str *body)
{
    const struct batch_line *line = &b->in.lines[it->line];
    const struct api_error *error = &it->error;
    struct str *out = &it->answer;
    str_addf(out, "{\"id\":\"batch_req_%s\",\"custom_id\":", it->id);
    json_write_string(out, str_text(&b->in.ids) + line->id, line->id_len);
    str_addf(out, ",\"response\":{\"status_code\":%d,\"request_id\":\"%s\",\"body\":",
             error->status ? error->status : 200, it->id);
    if (error->status)
        str_adds(out, "null");
    else
        str_add(out, str_text(body), body->len);
    str_adds(out, "},\"error\":");
    if (error->status)
        api_error_write(error, out);
    else
        str_adds(out, "null");
    str_adds(out, "}\n");
    generation_free(it->generation);
    it->generation = NULL;
    b->n_inflight--;
    b->held_bytes += out->len;
    b->done++;
    b->failed += error->status != 0;
}

static void item_free(struct item *it)
{
    generation_free(it->generation);
    str_free(&it->answer);
    free(it);
}

/* --- the batch ------------------------------------------------------------------------------------ */

/* Gives the worker lines until enough are in flight. */
static void begin_lines(struct batch *b)
{
    while (b->next < b->in.n && b->n_inflight < b->max_inflight && b->held_bytes < MAX_HELD_BYTES) {
        struct item *it = mem_zalloc(1, sizeof *it);
        it->job.run = run_job;
        it->batch = b;
        it->line = b->next++;
        snprintf(it->id, sizeof it->id, "%016llx-%zu", (unsigned long long)b->run, it->line + 1);
        *(b->last ? &b->last->next : &b->first) = it;
        b->last = it;
        b->n_inflight++;
        workers_add(b->workers, &it->job);
    }
}

/* Takes what the worker is done with. */
static void take_lines(struct batch *b)
{
    while (sem_trywait(&b->news) == 0)
        ;
    struct job *j;
    while ((j = workers_take(b->workers))) {
        struct item *it = (struct item *)j;
        if (it->generation)
            b->live[b->n_live++] = it;
        else
            finish(b, it, NULL);
    }
}

/* Takes in what the last step made. */
static void advance(struct batch *b)
{
    struct str body = {0};
    for (int i = 0; i < b->n_live;) {
        struct item *it = b->live[i];
        if (!generation_advance(it->generation, NULL, &body)) {
            i++;
            continue;
        }
        it->error = it->generation->error;
        finish(b, it, &body);
        str_clear(&body);
        b->live[i] = b->live[--b->n_live];
    }
    str_free(&body);
}

/* Writes the answers whose turn it is. */
static int write_answers(struct batch *b, struct err *e)
{
    while (b->first && b->first->answer.len > 0) {
        struct item *it = b->first;
        if (batch_output_add(&b->out, it->answer.data, it->answer.len, e))
            return -1;
        b->held_bytes -= it->answer.len;
        b->out.n++;
        b->first = it->next;
        if (!b->first)
            b->last = NULL;
        item_free(it);
    }
    return 0;
}

/* --- progress ------------------------------------------------------------------------------------- */

struct progress {
    bool tty;
    double interval; /* seconds between lines, where it is no terminal */
    double began, shown;
    size_t done_before; /* by earlier runs */
    /* the rate of answer tokens, over the last seconds */
    double rate_at, rate;
    uint64_t rate_tokens;
};

#define RATE_SECONDS 2.0

/* "1:02:03" or "2:03". */
static void write_time(char *buf, size_t size, double seconds)
{
    if (!(seconds < 360000)) {
        snprintf(buf, size, "over 100 hours");
        return;
    }
    int s = (int)(seconds + 0.5);
    if (s >= 3600)
        snprintf(buf, size, "%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buf, size, "%d:%02d", s / 60, s % 60);
}

static void show(const struct batch *b, struct progress *p)
{
    double now = clock_now();
    if (now - p->shown < (p->tty ? 0.1 : p->interval) && !(p->tty && b->out.n == b->in.n))
        return;
    p->shown = now;
    double since = now - p->rate_at;
    if (since >= RATE_SECONDS || p->rate == 0) {
        struct sluice_stats stats;
        sluice_stats(b->model.engine, &stats);
        p->rate = (double)(stats.generation_tokens - p->rate_tokens) / since;
        if (since >= RATE_SECONDS) {
            p->rate_at = now;
            p->rate_tokens = stats.generation_tokens;
        }
    }
    char left[32] = "?";
    size_t fresh = b->done - p->done_before;
    if (fresh > 0)
        write_time(left, sizeof left, (now - p->began) / (double)fresh * (double)(b->in.n - b->done));
    double share = (double)b->done / (double)b->in.n;
    if (!p->tty) {
        log_info("%zu of %zu lines (%.0f %%), %.1f tok/s, %s left", b->done, b->in.n, 100 * share, p->rate,
                 left);
        return;
    }
    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    int full = (int)(share * WIDTH);
    memset(bar, '#', (size_t)full);
    memset(bar + full, '.', (size_t)(WIDTH - full));
    bar[WIDTH] = '\0';
    fprintf(stderr, "\r[%s] %zu/%zu lines, %.1f tok/s, %s left\033[K", bar, b->done, b->in.n, p->rate, left);
    fflush(stderr);
}

static void show_end(const struct batch *b, const struct progress *p)
{
    if (p->tty)
        fputs("\r\033[K", stderr);
    struct sluice_stats stats;
    sluice_stats(b->model.engine, &stats);
    double seconds = clock_now() - p->began;
    log_info("%zu of %zu lines are in %s (%zu of these answers are errors)", b->out.n, b->in.n, b->out.path,
             b->failed);
    log_info("%.1f s, %llu prompt tokens (%llu of them cached), %llu answer tokens, %.1f tok/s", seconds,
             (unsigned long long)(stats.prompt_tokens), (unsigned long long)stats.cached_tokens,
             (unsigned long long)stats.generation_tokens, (double)stats.generation_tokens / seconds);
}

/* --- the command ---------------------------------------------------------------------------------- */

/* Runs until all is written or a signal came (0), or the output cannot be written (-1 and *e). */
static int run(struct batch *b, struct progress *p, struct err *e)
{
    while (b->out.n < b->in.n && !stop_signal) {
        begin_lines(b);
        take_lines(b);
        int computed = sluice_step(b->model.engine);
        advance(b);
        if (write_answers(b, e))
            return -1;
        show(b, p);
        /* nothing for the engine: the next line is with the worker */
        if (computed == 0 && b->n_live == 0 && b->first)
            sem_wait(&b->news);
    }
    return 0;
}

static int answer_all(struct batch *b, struct progress *p)
{
    struct err e;
    int status = EXIT_FAILED;
    const int max_num_seqs = sluice_plan(b->model.engine)->max_num_seqs;
    if (b->max_inflight == 0)
        b->max_inflight = max_num_seqs > 512 ? 2 * max_num_seqs : 1024;
    if (getrandom(&b->run, sizeof b->run, 0) != sizeof b->run)
        b->run = (uint64_t)(clock_now() * 1e9);
    b->next = b->done = b->out.n;
    b->failed = b->out.failed;
    b->live = mem_zalloc((size_t)b->max_inflight, sizeof(struct item *));
    sem_init(&b->news, 0, 0);
    b->workers = workers_create(1, tell, b, &e);
    if (!b->workers || batch_output_begin(&b->out, &e))
        goto done;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    p->tty = isatty(STDERR_FILENO);
    p->began = p->shown = p->rate_at = clock_now();
    p->done_before = b->done;
    int rc = run(b, p, &e);
    show_end(b, p);
    if (rc)
        goto done;
    status = b->out.n == b->in.n ? 0 : 128 + stop_signal;
done:
    if (status == EXIT_FAILED)
        fprintf(stderr, "sluice batch: %s\n", e.msg);
    else if (status)
        fprintf(stderr, "sluice batch: interrupted; the same command goes on from here\n");
    if (b->workers) {
        workers_stop(b->workers);
        workers_free(b->workers);
    }
    for (struct item *it = b->first, *next; it; it = next) {
        next = it->next;
        item_free(it);
    }
    free(b->live);
    sem_destroy(&b->news);
    return status;
}

int cmd_batch(int argc, char **argv)
{
    struct batch b = {.in.fd = -1, .out.fd = -1};
    served_model_init(&b.model);
    struct progress progress = {.interval = 10};
    const char *input = NULL, *output = NULL;
    bool overwrite = false;
    const struct option_spec options[] = {
        {.group = "Batch"},
        {.name = "input-file",
         .alias = "i",
         .text = &input,
         .value = "FILE",
         .help = "requests in OpenAI's batch format, one a line: {\"custom_id\": …, \"method\": \"POST\", "
                 "\"url\": "
                 "…, \"body\": {…}}, url being " PROTOCOL_PATHS},
        {.name = "output-file",
         .alias = "o",
         .text = &output,
         .value = "FILE",
         .help = "answers, one a line, in the input's order; what it already holds is not made again"},
        {.name = "overwrite", .flag = &overwrite, .help = "start anew, even if the output holds answers"},
        {.name = "max-inflight",
         .num = &b.max_inflight,
         .min = 1,
         .max = 1 << 20,
         .initial = "1024, or twice --max-num-seqs if that is more",
         .value = "N",
         .help = "requests read and not answered at one time"},
        {.name = "progress-interval",
         .real = &progress.interval,
         .min = 0.01,
         .max = 86400,
         .value = "S",
         .help = "seconds between lines of progress where stderr is no terminal"},
        {.group = "Answers"},
        ANSWER_OPTIONS(b.model),
        {.group = "Scheduler"},
        POOL_OPTIONS(b.model.engine_options, b.model.kv_bytes),
        SWAP_OPTION(b.model.swap_gib),
        PREFIX_CACHE_OPTIONS(b.model),
        ENGINE_OPTIONS(b.model.engine_options),
        {0},
    };
    const struct option_positional words[] = {
        {"MODEL", &b.model.path, true, "a .gguf file or a Hugging Face directory"}, {0}};
    const struct option_command command = {"batch",
                                           "Answers a file of requests, as `sluice serve` would, and ends. "
                                           "Run again after a kill or Ctrl-C, it goes "
                                           "on where it was. The exit status is 0 only if every request has "
                                           "its line; a request that is refused gets "
                                           "one that says so.",
                                           words, options};
    int status = options_parse(&command, argc, argv);
    if (status >= 0)
        return status;
    if (!input || !output)
        return options_usage_error(&command, "%s is missing", input ? "-o FILE" : "-i FILE");

    status = EXIT_FAILED;
    struct err e;
    if (batch_input_open(&b.in, input, line_depth(&b), &e) ||
        batch_output_open(&b.out, output, &b.in, overwrite, &e)) {
        fprintf(stderr, "sluice batch: %s\n", e.msg);
        goto done;
    }
    if (b.out.n > 0)
        log_info("%zu of %zu lines are already in %s", b.out.n, b.in.n, output);
    if (b.out.n == b.in.n) {
        status = 0;
        if (batch_output_begin(&b.out, &e)) {
            fprintf(stderr, "sluice batch: %s\n", e.msg);
            status = EXIT_FAILED;
        }
    } else if (served_model_load("batch", &b.model) == 0) {
        status = answer_all(&b, &progress);
    }
done:
    if (batch_output_close(&b.out, &e)) {
        fprintf(stderr, "sluice batch: %s\n", e.msg);
        status = EXIT_FAILED;
    }
    batch_input_close(&b.in);
    served_model_free(&b.model);
    return status;
}
