/* The histograms of requests, by name: one table for the page and for buckets that the operator chooses. */
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "http/metrics_page.h"

#define IN(field) offsetof(struct metrics, field)

static const struct {
    const char *name; /* after "vllm:" */
    size_t at;        /* in struct metrics */
    const char *help;
} histograms[] = {
    {"iteration_tokens_total", IN(iteration_tokens), "Tokens computed in a step."},
    {"time_to_first_token_seconds", IN(ttft), "From a request's arrival to its first token."},
    {"inter_token_latency_seconds", IN(gap), "Between the tokens of an answer."},
    {"request_time_per_output_token_seconds", IN(per_token),
     "Time for each token after the first, by answer."},
    {"e2e_request_latency_seconds", IN(e2e), "From a request's arrival to its last token."},
    {"request_queue_time_seconds", IN(queue), "From the queue to the first step."},
    {"request_prefill_time_seconds", IN(prefill), "From the first step to the first token."},
    {"request_decode_time_seconds", IN(decode), "From the first token to the last."},
    {"request_inference_time_seconds", IN(inference), "From the first step to the last token."},
    {"request_prompt_tokens", IN(prompt_tokens), "Prompt tokens of a request."},
    {"request_generation_tokens", IN(generation_tokens), "Tokens of an answer."},
    {"request_max_num_generation_tokens", IN(max_generation_tokens), "Tokens of the longest of n answers."},
    {"request_params_max_tokens", IN(params_max_tokens), "The max_tokens asked for."},
    {"request_params_n", IN(params_n), "The n asked for."},
    {"request_num_preemptions", IN(preemptions), "Times that a request lost its blocks."},
    {"request_prefill_kv_computed_tokens", IN(computed_tokens), "Prompt tokens computed, not cached."},
};
enum { N_HISTOGRAMS = sizeof histograms / sizeof *histograms };
_Static_assert(N_HISTOGRAMS == METRICS_HISTOGRAMS, "room for the buckets of each");

void page_write_histograms(struct page *p, const struct metrics *m)
{
    for (int i = 0; i < N_HISTOGRAMS; i++) {
        char name[96];
        snprintf(name, sizeof name, "vllm:%s", histograms[i].name);
        page_histogram(p, name, histograms[i].help,
                       (const struct histogram *)((const char *)m + histograms[i].at));
    }
}

void metrics_use_buckets(struct metrics *m, const struct metrics_buckets *b)
{
    for (int i = 0; i < N_HISTOGRAMS; i++)
        if (b->n[i] > 0)
            *(struct histogram *)((char *)m + histograms[i].at) =
                (struct histogram){.bounds = b->bounds[i], .n = b->n[i]};
}

static int read_bounds(const char *name, const json_t *list, double *bounds, int *n, struct err *e)
{
    size_t size = json_array_size(list);
    if (!json_is_array(list) || size < 1 || size > HISTOGRAM_MAX)
        return err_set(e, ERR_INVALID, "\"%s\" must be a list of 1 to %d bounds", name, HISTOGRAM_MAX);
    for (size_t i = 0; i < size; i++) {
        const json_t *v = json_array_get(list, i);
        bounds[i] = json_number_value(v);
        if (!json_is_number(v) || !isfinite(bounds[i]) || (i > 0 && bounds[i] <= bounds[i - 1]))
            return err_set(e, ERR_INVALID, "\"%s\": bound %zu is not a number greater than the one before",
                           name, i + 1);
    }
    *n = (int)size;
    return 0;
}

int metrics_buckets_parse(struct metrics_buckets *b, const char *json, struct err *e)
{
    json_error_t why;
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &why);
    const char *key;
    json_t *list;
    int rc = 0;
    memset(b, 0, sizeof *b);
    if (!json_is_object(root))
        rc = err_set(e, ERR_INVALID, "it is not a JSON object of {\"METRIC\": [bound, …]}: %s",
                     root ? "another kind of value" : why.text);
    json_object_foreach(root, key, list)
    {
        const char *name = strncmp(key, "vllm:", 5) == 0 ? key + 5 : key;
        int i = 0;
        while (i < N_HISTOGRAMS && strcmp(name, histograms[i].name) != 0)
            i++;
        if (rc == 0 && i == N_HISTOGRAMS)
            rc = err_set(e, ERR_INVALID, "there is no histogram \"%.80s\": one is %s", key,
                         histograms[1].name);
        else if (rc == 0)
            rc = read_bounds(histograms[i].name, list, b->bounds[i], &b->n[i], e);
    }
    json_decref(root);
    return rc;
}
