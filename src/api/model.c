#include "api/model.h"

#include <stdio.h>
#include <string.h>

#include "api/fields.h"
#include "api/grammar_cache.h"
#include "api/json_write.h"
#include "base/log.h"
#include "base/version.h"
#include "file/gguf.h"

/* One default: where it lives in either kind of file, and what it may be. */
struct default_key {
    const char *hf, *gguf; /* NULL = that kind has none */
    double min, max;
    bool above_min; /* min itself is not allowed */
};

static const struct default_key default_keys[] = {
    {"temperature", "general.sampling.temp", 0, 2, false},
    {"top_p", "general.sampling.top_p", 0, 1, true},
    {"top_k", "general.sampling.top_k", -1, 1e9, false},
    {"min_p", "general.sampling.min_p", 0, 1, false},
    {"repetition_penalty", "general.sampling.penalty_repeat", 0, 1e6, true},
    {"presence_penalty", NULL, -2, 2, false},
    {"frequency_penalty", NULL, -2, 2, false},
    {"max_new_tokens", NULL, 1, 1e9, false},
};

#define N_DEFAULTS (sizeof default_keys / sizeof *default_keys)

static bool default_find(const struct default_key *k, const struct model_file *f, double *out)
{
    if (f->kind == MODEL_FILE_GGUF)
        return k->gguf && gguf_f64(f->gguf, k->gguf, out);
    const json_t *v = json_object_get(f->generation_config, k->hf);
    return v && !json_is_null(v) && value_float(v, out);
}

/* The defaults in the order of default_keys, and back. */
static void to_values(const struct sampling_defaults *d, double v[N_DEFAULTS])
{
    const double values[N_DEFAULTS] = {d->temperature,        d->top_p,
                                       (double)d->top_k,      d->min_p,
                                       d->repetition_penalty, d->presence_penalty,
                                       d->frequency_penalty,  (double)d->max_tokens};
    memcpy(v, values, sizeof values);
}

static void from_values(struct sampling_defaults *d, const double v[N_DEFAULTS])
{
    d->temperature = v[0];
    d->top_p = v[1];
    d->top_k = v[2] > 0 ? (int64_t)v[2] : 0;
    d->min_p = v[3];
    d->repetition_penalty = v[4];
    d->presence_penalty = v[5];
    d->frequency_penalty = v[6];
    d->max_tokens = (int64_t)v[7];
}

static bool default_allowed(const struct default_key *k, double x)
{
    return x >= k->min && x <= k->max && !(k->above_min && x == k->min);
}

void sampling_defaults_read(struct sampling_defaults *d, const struct model_file *from)
{
    double v[N_DEFAULTS] = {1, 1, 0, 0, 1, 0, 0, 0};
    for (size_t i = 0; from && i < N_DEFAULTS; i++) {
        const struct default_key *k = &default_keys[i];
        double x;
        if (!default_find(k, from, &x))
            continue;
        if (!default_allowed(k, x)) {
            log_warn("the checkpoint's generation config sets %s to %g, which is out of range: left out",
                     from->kind == MODEL_FILE_GGUF ? k->gguf : k->hf, x);
            continue;
        }
        v[i] = x;
    }
    *d = (struct sampling_defaults){0};
    from_values(d, v);
}

int sampling_defaults_override(struct sampling_defaults *d, const json_t *config, bool strict, struct err *e)
{
    double v[N_DEFAULTS];
    to_values(d, v);
    const char *key;
    json_t *value;
    if (!json_is_object(config))
        return err_set(e, ERR_INVALID, "must be a JSON object");
    json_object_foreach((json_t *)(uintptr_t)config, key, value)
    {
        size_t i = 0;
        while (i < N_DEFAULTS && strcmp(default_keys[i].hf, key) != 0)
            i++;
        if (i == N_DEFAULTS && strict)
            return err_set(e, ERR_INVALID,
                           "%.60s is not a default that this server has: temperature, top_p, top_k, min_p, "
                           "repetition_penalty, presence_penalty, frequency_penalty, max_new_tokens",
                           key);
        if (i == N_DEFAULTS || json_is_null(value))
            continue;
        double x;
        if (!value_float(value, &x) || !default_allowed(&default_keys[i], x))
            return err_set(e, ERR_INVALID, "%s must be a number in %c%g, %g]", key,
                           default_keys[i].above_min ? '(' : '[', default_keys[i].min, default_keys[i].max);
        v[i] = x;
        if (strcmp(key, "max_new_tokens") == 0)
            d->max_tokens_cap = (int64_t)x;
    }
    from_values(d, v);
    return 0;
}

bool api_may_set_variable(const char *name)
{
    /* fields of the request, and the special tokens, whose text would become control tokens */
    static const char *const names[] = {
        "messages",      "tools",    "documents",    "add_generation_prompt",
        "chat_template", "tokenize", "conversation", "continue_final_message"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return false;
    size_t n = strlen(name);
    return n < 6 || strcmp(name + n - 6, "_token") != 0;
}

void api_limits_init(struct api_limits *l)
{
    *l = (struct api_limits){.max_logprobs = 20,
                             .max_prompts = 1024,
                             .max_choices = 16384,
                             .max_answer = (size_t)256 << 20,
                             .max_json_depth = 128,
                             .max_grammars = (size_t)64 << 20};
}

void api_model_init(struct api_model *m)
{
    m->vocab = sluice_info(m->engine)->vocab;
    m->max_model_len = sluice_plan(m->engine)->max_model_len;
    m->n_stop_ids = tokenizer_stop_ids(m->tokenizer, m->stop_ids, API_MAX_STOP_IDS);
    m->reasoning = reasoning_format_choose(m->reasoning_parser, m->template);
    m->tool_format = tool_format_choose(m->tool_call_parser, m->template);
    m->grammars = grammar_cache_create(m->tokenizer, m->vocab, m->limits.max_grammars);
    /* a hash of what shapes the answers: the model and how it is computed */
    const struct sluice_info *info = sluice_info(m->engine);
    char shape[512];
    snprintf(shape, sizeof shape, "%s %s %d %d %lld %s", info->arch, info->backend, info->n_layers,
             info->hidden, (long long)info->n_params, m->names[0]);
    uint32_t hash = 2166136261u;
    for (const char *p = shape; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    snprintf(m->fingerprint, sizeof m->fingerprint, "sluice-%s-%08x", SLUICE_VERSION, (unsigned)hash);
}

void api_model_free(struct api_model *m)
{
    grammar_cache_free(m->grammars);
    m->grammars = NULL;
}

static bool is_served(const struct api_model *m, const char *name)
{
    for (int i = 0; i < m->n_names; i++)
        if (strcmp(m->names[i], name) == 0)
            return true;
    return false;
}

static int not_served(const struct api_model *m, const char *name, struct api_error *e)
{
    return api_fail(e, 404, "NotFoundError", "model",
                    "The model `%.200s` does not exist; this server serves `%s`.", name, m->names[0]);
}

int api_model_check_name(const struct api_model *m, const json_t *body, struct api_error *e)
{
    const json_t *name;
    int set = field_string(body, "model", &name, e);
    if (set <= 0)
        return set;
    const char *text = json_string_value(name);
    if (m->any_name || json_string_length(name) == 0 || is_served(m, text))
        return 0;
    return not_served(m, text, e);
}

static void write_entry(const struct api_model *m, const char *name, int64_t now, struct str *out)
{
    str_adds(out, "{\"id\":");
    json_write_text(out, name);
    str_addf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"sluice\",\"root\":", (long long)now);
    json_write_text(out, m->root);
    str_addf(out, ",\"parent\":null,\"max_model_len\":%d,\"permission\":[{\"id\":\"modelperm-%s\"",
             m->max_model_len, m->fingerprint);
    str_addf(
        out,
        ",\"object\":\"model_permission\",\"created\":%lld,\"allow_create_engine\":false,"
        "\"allow_sampling\":true,\"allow_logprobs\":true,\"allow_search_indices\":false,\"allow_view\":true,"
        "\"allow_fine_tuning\":false,\"organization\":\"*\",\"group\":null,\"is_blocking\":false}]}",
        (long long)now);
}

void api_models_write(const struct api_model *m, int64_t now, struct str *out)
{
    str_adds(out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < m->n_names; i++) {
        if (i)
            str_addc(out, ',');
        write_entry(m, m->names[i], now, out);
    }
    str_adds(out, "]}");
}

int api_model_write(const struct api_model *m, const char *id, int64_t now, struct str *out,
                    struct api_error *e)
{
    if (!is_served(m, id))
        return not_served(m, id, e);
    write_entry(m, id, now, out);
    return 0;
}
