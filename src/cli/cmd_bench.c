/* `sluice bench MODEL`: how fast prompts are read and answers are made, at several batch sizes, and how near
 * that is to what this machine can do. The limits are measured in the same process with the same number of
 * threads (ops/cpu/limits.h), and the bytes are the ledger's, so a share is a ratio of two measurements, not
 * of a measurement and a data sheet.
 *
 * Machines are shared, and what they can do changes by the minute: the limits are measured anew for every
 * batch size, and a peer's benchmark (--against) runs between our repeats, so that ratios are of neighbours
 * in time.
 *
 * One repeat at batch B submits B prompts of random ids and steps until all have made their tokens. Steps
 * that hold prompt tokens count as prefill (the few decode tokens that share them are noise beside thousands
 * of prompt tokens); steps in which all B requests decode and nothing else happens count as decode. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "cli/bench_peer.h"
#include "cli/commands.h"
#include "cli/load.h"
#include "cli/options.h"
#include "ops/cpu/limits.h"

#define MAX_BATCHES 32
#define MAX_REPEAT  1000

struct plan {
    const char *model, *against; /* against: the peer's command, or NULL */
    int batches[MAX_BATCHES];    /* [n_batches] */
    int n_batches, prompt, gen, repeat, threads;
};

/* One repeat's sums over the steps of a kind. */
struct phase {
    int steps;
    double seconds, tokens, flops;
    double weight_bytes, kv_bytes, state_bytes;
};

struct spread {
    double min, median, max;
};

struct row {
    int batch;
    struct spread prefill_tok_s, decode_tok_s, step_ms;
    double weight_bytes, kv_bytes, state_bytes; /* a decode step, mean */
    struct cpu_limits limits;                   /* measured beside this row */
    double read_share;                          /* of the read bandwidth, in decode */
    double compute_share;                       /* of the arithmetic peak, in prefill */
    struct spread peer_prefill, peer_decode;    /* with --against: tokens a second … */
    struct spread prefill_ratio, decode_ratio;  /* … and ours over the peer's, repeat by repeat */
};

/* --- measuring ------------------------------------------------------------------------------------ */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct spread spread_of(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, compare_doubles);
    double median = n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
    return (struct spread){.min = values[0], .median = median, .max = values[n - 1]};
}

static void add_step(struct phase *p, const struct sluice_ledger *step, double tokens)
{
    p->steps++;
    p->seconds += step->seconds;
    p->tokens += tokens;
    p->flops += (double)step->flops;
    p->weight_bytes += (double)step->weight_bytes;
    p->kv_bytes += (double)step->kv_read_bytes + (double)step->kv_write_bytes;
    p->state_bytes += (double)step->state_bytes;
}

/* Ids that no earlier repeat used in this order, so that nothing is found in a prefix cache. */
static void random_prompt(int32_t *ids, int n, int vocab, uint64_t *random)
{
    for (int i = 0; i < n; i++) {
        *random = *random * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
        ids[i] = (int32_t)((*random >> 33) % (uint64_t)vocab);
    }
}

/* One repeat. Returns 0, or -1 with *e. */
static int run_once(struct sluice *s, const struct plan *plan, int batch, uint64_t *random,
                    struct phase *prefill, struct phase *decode, struct err *e)
{
    *prefill = *decode = (struct phase){0};
    struct sluice_sampling sampling;
    sluice_sampling_init(&sampling);
    sampling.max_tokens = plan->gen;
    struct sluice_request **requests = mem_zalloc((size_t)batch, sizeof(struct sluice_request *));
    int32_t *prompt = mem_zalloc((size_t)plan->prompt, sizeof *prompt);
    int rc = -1;
    for (int i = 0; i < batch; i++) {
        random_prompt(prompt, plan->prompt, sluice_info(s)->vocab, random);
        if (!(requests[i] = sluice_submit(s, prompt, plan->prompt, &sampling, e)))
            goto done;
    }
    while (sluice_step(s) > 0) {
        struct sluice_stats stats;
        sluice_stats(s, &stats);
        const struct sluice_ledger *step = &stats.last;
        if (step->prompt_tokens > 0)
            add_step(prefill, step, (double)step->prompt_tokens);
        else if (step->decode_tokens == (uint64_t)batch)
            add_step(decode, step, (double)step->decode_tokens);
    }
    for (int i = 0; i < batch; i++) {
        struct sluice_progress p;
        sluice_request_progress(requests[i], &p);
        if (p.finish != SLUICE_LENGTH || p.n_tokens != plan->gen) {
            err_set(e, ERR_INVALID, "request %d of %d ended after %d of %d tokens: %s", i + 1, batch,
                    p.n_tokens, plan->gen,
                    p.finish == SLUICE_ERROR ? sluice_request_error(requests[i]) : "stopped early");
            goto done;
        }
    }
    if (decode->steps == 0 || prefill->steps == 0) {
        err_set(e, ERR_LIMIT, "at batch %d no step decoded for all requests at once: raise --gen", batch);
        goto done;
    }
    rc = 0;
done:
    for (int i = 0; i < batch; i++)
        if (requests[i])
            sluice_request_free(requests[i]);
    free(requests);
    free(prompt);
    return rc;
}

/* `quantised`: the arithmetic that bounds prefill is of bytes. */
static int run_batch(struct sluice *s, const struct plan *plan, int batch, const char *level, bool quantised,
                     uint64_t *random, struct row *row, struct err *e)
{
    double peer_prefill[MAX_REPEAT], peer_decode[MAX_REPEAT], prefill_ratio[MAX_REPEAT],
        decode_ratio[MAX_REPEAT];
    double prefill_rate[MAX_REPEAT], decode_rate[MAX_REPEAT], step_ms[MAX_REPEAT];
    double read_share[MAX_REPEAT], compute_share[MAX_REPEAT];
    struct phase prefill, decode;
    if (run_once(s, plan, batch, random, &prefill, &decode, e) || /* warms caches and pages; not counted */
        cpu_limits_measure(level, plan->threads, &row->limits, e))
        return -1;
    double peak = 1e9 * (quantised ? row->limits.int8_gops : row->limits.fp32_gflops);
    for (int i = 0; i < plan->repeat; i++) {
        if (run_once(s, plan, batch, random, &prefill, &decode, e))
            return -1;
        double bytes = decode.weight_bytes + decode.kv_bytes + decode.state_bytes;
        prefill_rate[i] = prefill.tokens / prefill.seconds;
        decode_rate[i] = decode.tokens / decode.seconds;
        step_ms[i] = 1e3 * decode.seconds / decode.steps;
        read_share[i] = bytes / decode.seconds / (1e9 * row->limits.read_gbs);
        compute_share[i] = prefill.flops / prefill.seconds / peak;
        row->weight_bytes = decode.weight_bytes / decode.steps;
        row->kv_bytes = decode.kv_bytes / decode.steps;
        row->state_bytes = decode.state_bytes / decode.steps;
        struct peer_work work = {plan->model, batch, plan->prompt, plan->gen, plan->threads};
        struct peer_speed peer;
        if (!plan->against)
            continue;
        if (peer_run(plan->against, &work, &peer, e))
            return -1;
        peer_prefill[i] = peer.prefill_tok_s;
        peer_decode[i] = peer.decode_tok_s;
        prefill_ratio[i] = prefill_rate[i] / peer.prefill_tok_s;
        decode_ratio[i] = decode_rate[i] / peer.decode_tok_s;
    }
    if (plan->against) {
        row->peer_prefill = spread_of(peer_prefill, plan->repeat);
        row->peer_decode = spread_of(peer_decode, plan->repeat);
        row->prefill_ratio = spread_of(prefill_ratio, plan->repeat);
        row->decode_ratio = spread_of(decode_ratio, plan->repeat);
    }
    row->batch = batch;
    row->prefill_tok_s = spread_of(prefill_rate, plan->repeat);
    row->decode_tok_s = spread_of(decode_rate, plan->repeat);
    row->step_ms = spread_of(step_ms, plan->repeat);
    row->read_share = spread_of(read_share, plan->repeat).median;
    row->compute_share = spread_of(compute_share, plan->repeat).median;
    return 0;
}

/* Whether the multiply-adds that bound prefill are of bytes: most weights are quantised, and the fast levels
 * quantise the activations too. */
static bool computes_in_bytes(const struct model_file *file, const char *backend)
{
    double quantised = 0, all = 0;
    for (int i = 0; i < file->n_tensors; i++) {
        const struct tensor *t = &file->tensors[i];
        double n = t->n_dims == 2 ? (double)t->shape[0] * (double)t->shape[1] : 0;
        all += n;
        quantised += dtype_info(t->dtype)->block > 1 ? n : 0;
    }
    return quantised > 0.5 * all && !strstr(backend, "reference");
}

/* --- printing ------------------------------------------------------------------------------------- */

static void print_limits(const struct cpu_limits *l, int threads)
{
    printf("limits of this machine with %d threads: read %.2f GB/s, fp32 %.1f GFLOP/s, int8 %.1f GOP/s",
           threads, l->read_gbs, l->fp32_gflops, l->int8_gops);
    if (l->bf16_gflops > 0)
        printf(", bf16 %.1f GFLOP/s (not used)", l->bf16_gflops);
    putchar('\n');
}

static void print_ratios(const struct row *rows, int n)
{
    printf("\n%5s  %22s  %22s  %22s  %22s\n", "", "peer prefill tok/s", "peer decode tok/s",
           "prefill, times peer", "decode, times peer");
    printf("%5s  %22s  %22s  %22s  %22s\n", "batch", "min median max", "min median max", "min median max",
           "min median max");
    for (int i = 0; i < n; i++) {
        const struct spread *s[4] = {&rows[i].peer_prefill, &rows[i].peer_decode, &rows[i].prefill_ratio,
                                     &rows[i].decode_ratio};
        printf("%5d", rows[i].batch);
        for (int k = 0; k < 4; k++)
            printf(k < 2 ? "  %6.1f %7.1f %7.1f" : "  %6.2f %7.2f %7.2f", s[k]->min, s[k]->median, s[k]->max);
        putchar('\n');
    }
}

static void print_rows(const struct row *rows, int n)
{
    printf("%5s  %22s  %22s  %22s  %9s  %8s  %8s  %7s  %7s\n", "", "prefill tok/s", "decode tok/s",
           "decode step ms", "weights", "KV", "state", "read", "compute");
    printf("%5s  %22s  %22s  %22s  %9s  %8s  %8s  %7s  %7s\n", "batch", "min median max", "min median max",
           "min median max", "MB/step", "MB/step", "MB/step", "share", "share");
    for (int i = 0; i < n; i++) {
        const struct row *r = &rows[i];
        printf("%5d  %6.0f %7.0f %7.0f  %6.1f %7.1f %7.1f  %6.2f %7.2f %7.2f  %9.2f  %8.3f  %8.3f  %5.0f %%  "
               "%5.0f %%\n",
               r->batch, r->prefill_tok_s.min, r->prefill_tok_s.median, r->prefill_tok_s.max,
               r->decode_tok_s.min, r->decode_tok_s.median, r->decode_tok_s.max, r->step_ms.min,
               r->step_ms.median, r->step_ms.max, r->weight_bytes / 1e6, r->kv_bytes / 1e6,
               r->state_bytes / 1e6, 100 * r->read_share, 100 * r->compute_share);
    }
    puts("read share: bytes of a decode step / its time / read bandwidth; compute share: arithmetic of "
         "prefill / its "
         "time / peak");
}

/* The median under the plain name, the ends beside it. */
static void set_spread(json_t *row, const char *name, const struct spread *s)
{
    char key[40];
    json_object_set_new(row, name, json_real(s->median));
    snprintf(key, sizeof key, "%s_min", name);
    json_object_set_new(row, key, json_real(s->min));
    snprintf(key, sizeof key, "%s_max", name);
    json_object_set_new(row, key, json_real(s->max));
}

static json_t *limits_json(const struct cpu_limits *l)
{
    return json_pack("{s:f, s:f, s:f, s:f}", "read_gbs", l->read_gbs, "fp32_gflops", l->fp32_gflops,
                     "int8_gops", l->int8_gops, "bf16_gflops", l->bf16_gflops);
}

/* s NULL: only the limits are reported. */
static void print_json(const struct sluice *s, const struct plan *plan, const struct cpu_limits *l,
                       const struct row *rows, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        const struct row *r = &rows[i];
        json_t *row = json_pack("{s:i}", "batch", r->batch);
        set_spread(row, "prefill_tok_s", &r->prefill_tok_s);
        set_spread(row, "decode_tok_s", &r->decode_tok_s);
        set_spread(row, "step_ms", &r->step_ms);
        json_object_set_new(row, "weight_bytes", json_integer((json_int_t)r->weight_bytes));
        json_object_set_new(row, "kv_bytes", json_integer((json_int_t)r->kv_bytes));
        json_object_set_new(row, "state_bytes", json_integer((json_int_t)r->state_bytes));
        json_object_set_new(row, "read_share", json_real(r->read_share));
        json_object_set_new(row, "compute_share", json_real(r->compute_share));
        json_object_set_new(row, "limits", limits_json(&r->limits));
        if (plan->against) {
            set_spread(row, "peer_prefill_tok_s", &r->peer_prefill);
            set_spread(row, "peer_decode_tok_s", &r->peer_decode);
            set_spread(row, "prefill_ratio", &r->prefill_ratio);
            set_spread(row, "decode_ratio", &r->decode_ratio);
        }
        json_array_append_new(list, row);
    }
    json_t *out =
        json_pack("{s:o, s:i, s:o}", "limits", limits_json(l), "threads", plan->threads, "rows", list);
    if (s) {
        json_object_set_new(out, "model", json_string(plan->model));
        json_object_set_new(out, "arch", json_string(sluice_info(s)->arch));
        json_object_set_new(out, "backend", json_string(sluice_info(s)->backend));
        json_object_set_new(out, "prompt", json_integer(plan->prompt));
        json_object_set_new(out, "gen", json_integer(plan->gen));
        json_object_set_new(out, "repeat", json_integer(plan->repeat));
    }
    json_dumpf(out, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(out);
}

/* --- the command ---------------------------------------------------------------------------------- */

/* "1,2,8" into plan->batches. Returns false if it is not that. */
static bool parse_batches(const char *text, struct plan *plan)
{
    char word[24];
    while (*text) {
        size_t len = strcspn(text, ",");
        int64_t n;
        if (len == 0 || len >= sizeof word || plan->n_batches == MAX_BATCHES)
            return false;
        snprintf(word, sizeof word, "%.*s", (int)len, text);
        if (!option_number(word, &n) || n < 1 || n > 4096)
            return false;
        plan->batches[plan->n_batches++] = (int)n;
        text += len;
        if (*text == ',' && !*++text)
            return false;
    }
    return plan->n_batches > 0;
}

int cmd_bench(int argc, char **argv)
{
    struct sluice_options engine = {0};
    struct plan plan = {.prompt = 256, .gen = 64, .repeat = 3};
    const char *batches = "1,2,4,8";
    bool json = false, want_limits = false, verbose = false;
    const struct option_positional words[] = {
        {"MODEL", &plan.model, false, "a .gguf file, or a directory with config.json and safetensors"}, {0}};
    const struct option_spec options[] = {
        {.group = "Measurement"},
        {.name = "batch",
         .alias = "b",
         .text = &batches,
         .value = "N,N,…",
         .help = "numbers of requests that run at once, each measured by itself"},
        {.name = "prompt",
         .alias = "p",
         .num = &plan.prompt,
         .min = 1,
         .max = 1 << 20,
         .value = "N",
         .help = "tokens of each prompt"},
        {.name = "gen",
         .alias = "g",
         .num = &plan.gen,
         .min = 2,
         .max = 1 << 20,
         .value = "N",
         .help = "tokens of each answer"},
        {.name = "repeat",
         .alias = "r",
         .num = &plan.repeat,
         .min = 1,
         .max = MAX_REPEAT,
         .value = "N",
         .help = "counted repeats, after one that is not"},
        {.name = "max-num-batched-tokens",
         .num = &engine.max_num_batched_tokens,
         .min = 1,
         .max = 1 << 20,
         .initial = "2048",
         .value = "N",
         .help = "token budget of a step"},
        {.name = "against",
         .text = &plan.against,
         .value = "COMMAND",
         .help =
             "run this benchmark of another program after each repeat and print ratios. {model}, {batch}, "
             "{prompt}, {gen} and {threads} are filled in; it must print JSON lines as llama-batched-bench "
             "--output-format jsonl or llama-bench -o jsonl do"},
        {.name = "limits",
         .flag = &want_limits,
         .help = "print this machine's limits too; without MODEL, nothing else"},
        {.name = "json", .flag = &json, .help = "print one JSON object"},
        {.name = "verbose", .alias = "v", .flag = &verbose, .help = "print the memory plan"},
        ENGINE_OPTIONS(engine),
        {0},
    };
    const struct option_command command = {
        "bench",
        "Measures how fast prompts are read and answers are made at several batch sizes, in tokens a second, "
        "in "
        "bytes a step, and as shares of what this machine can do, measured in the same run.",
        words, options};
    int status = options_parse(&command, argc, argv);
    if (status >= 0)
        return status;
    if (!parse_batches(batches, &plan))
        return options_usage_error(&command,
                                   "--batch: '%s' is not a list such as 1,2,8 (at most %d, each 1 to 4096)",
                                   batches, MAX_BATCHES);
    if (!plan.model && !want_limits)
        return options_usage_error(&command, "MODEL is missing (only --limits does without)");
    if (!plan.model && plan.against)
        return options_usage_error(&command, "--against compares a MODEL, and none is given");

    status = EXIT_FAILED;
    struct row rows[MAX_BATCHES];
    int n_rows = 0;
    struct err e;
    struct model_file *file = NULL;
    struct sluice *s = NULL;
    log_set_level(LOG_LEVEL_WARN);
    if (plan.model) {
        if (!(file = model_file_open(plan.model, &e)))
            goto failed;
        for (int i = 0; i < plan.n_batches; i++)
            if (plan.batches[i] > engine.max_num_seqs)
                engine.max_num_seqs = plan.batches[i];
        engine.max_model_len = plan.prompt + plan.gen;
        if (!(s = load_engine("bench", file, &engine, verbose)))
            goto done;
        if (sluice_plan(s)->max_num_seqs < engine.max_num_seqs) {
            err_set(&e, ERR_NO_MEMORY, "only %d requests fit at once, --batch asks for %d",
                    sluice_plan(s)->max_num_seqs, engine.max_num_seqs);
            goto failed;
        }
    }
    plan.threads = s ? sluice_plan(s)->threads : engine.threads ? engine.threads : pool_cpu_count();
    struct cpu_limits limits;
    if (cpu_limits_measure(engine.cpu_level, plan.threads, &limits, &e))
        goto failed;
    if (want_limits && !json)
        print_limits(&limits, plan.threads);
    bool quantised = s && computes_in_bytes(file, sluice_info(s)->backend);
    uint64_t random = 1;
    for (int i = 0; s && i < plan.n_batches; i++, n_rows++)
        if (run_batch(s, &plan, plan.batches[i], engine.cpu_level, quantised, &random, &rows[i], &e))
            goto failed;
    if (json)
        print_json(s, &plan, &limits, rows, n_rows);
    else if (s)
        print_rows(rows, n_rows);
    if (plan.against && !json)
        print_ratios(rows, n_rows);
    status = 0;
    goto done;

failed:
    fprintf(stderr, "sluice bench: %s\n", e.msg);
done:
    if (s)
        sluice_close(s);
    if (file)
        model_file_close(file);
    return status;
}
