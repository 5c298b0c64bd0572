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

static bool default_find(const struct default_key *k, const struct model_file *f, double *out)
{
    if (f->kind == MODEL_FILE_GGUF)
        return k->gguf && gguf_f64(f->gguf, k->gguf, out);
    const json_t *v = json_object_get(f->generation_config, k->hf);
    return v && !json_is_null(v) && value_float(v, out);
}

void sampling_defaults_read(struct sampling_defaults *d, const struct model_file *from)
{
    double v[sizeof default_keys / sizeof *default_keys] = {1, 1, 0, 0, 1, 0, 0, 0};
    for (size_t i = 0; from && i < sizeof default_keys / sizeof *default_keys; i++) {
        const struct default_key *k = &default_keys[i];
        double x;
        if (!default_find(k, from, &x))
            continue;
        if (!(x >= k->min && x <= k->max) || (k->above_min && x == k->min)) {
            log_warn("the checkpoint's generation config sets %s to %g, which is out of range: left out",
                     from->kind == MODEL_FILE_GGUF ? k->gguf : k->hf, x);
            continue;
        }
        v[i] = x;
    }
    *d = (struct sampling_defaults){.temperature = v[0],
                                    .top_p = v[1],
                                    .top_k = v[2] > 0 ? (int64_t)v[2] : 0,
                                    .min_p = v[3],
                                    .repetition_penalty = v[4],
                                    .presence_penalty = v[5],
                                    .frequency_penalty = v[6],
                                    .max_tokens = (int64_t)v[7]};
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
    if (json_string_length(name) == 0 || is_served(m, text))
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
