/* The sampling fields of a request body: ranges, defaults and conflicts, checked here so that the engine
 * only ever sees numbers it can use. Precedence: the request, the checkpoint's generation config, OpenAI's
 * default. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "api/answer.h"
#include "api/fields.h"
#include "api/request.h"
#include "api/salt.h"
#include "base/mem.h"

/* Reads a float that must be min … max (min itself excluded with above_min); *out keeps its default when the
 * field is absent. */
static int ranged(const json_t *body, const char *name, double min, double max, bool above_min, double *out,
                  struct api_error *e)
{
    int set = field_float(body, name, out, e);
    if (set <= 0)
        return set;
    if (*out < min || *out > max || (above_min && *out <= min))
        return api_bad_value(e, name, json_object_get(body, name), "%s must be in %c%g, %g]", name,
                             above_min ? '(' : '[', min, max);
    return 0;
}

static int read_floats(struct sluice_sampling *p, const struct sampling_defaults *d, const json_t *body,
                       struct api_error *e)
{
    double temperature = d->temperature, top_p = d->top_p, min_p = d->min_p;
    double repetition = d->repetition_penalty, presence = d->presence_penalty,
           frequency = d->frequency_penalty;
    if (ranged(body, "temperature", 0, 2, false, &temperature, e) ||
        ranged(body, "top_p", 0, 1, true, &top_p, e) || ranged(body, "min_p", 0, 1, false, &min_p, e) ||
        ranged(body, "repetition_penalty", 0, 1e6, true, &repetition, e) ||
        ranged(body, "presence_penalty", -2, 2, false, &presence, e) ||
        ranged(body, "frequency_penalty", -2, 2, false, &frequency, e))
        return -1;
    /* below this a softmax overflows or is greedy in all but name */
    if (temperature < 1e-5)
        temperature = 0;
    else if (temperature < 0.01)
        temperature = 0.01;
    p->temperature = (float)temperature;
    /* a float rounds tiny values to 0, which means something else: keep them above it */
    p->top_p = fmaxf((float)top_p, 1e-6f);
    p->min_p = (float)min_p;
    p->repetition_penalty = fmaxf((float)repetition, 1e-6f);
    p->presence_penalty = (float)presence;
    p->frequency_penalty = (float)frequency;
    return 0;
}

static int read_integers(struct sluice_sampling *p, const struct api_model *m, const json_t *body,
                         struct api_error *e)
{
    int64_t top_k = m->defaults.top_k, seed = -1, priority = 0;
    if (field_int(body, "top_k", &top_k, e) < 0)
        return -1;
    if (top_k < -1)
        return api_bad_value(e, "top_k", json_object_get(body, "top_k"),
                             "top_k must be 0 or -1 (all tokens), or at least 1");
    p->top_k = top_k <= 0 || top_k >= m->vocab ? 0 : (int)top_k;
    if (field_int(body, "seed", &seed, e) < 0)
        return -1;
    if (field_int(body, "priority", &priority, e) < 0)
        return -1;
    if (priority < INT32_MIN || priority > INT32_MAX)
        return api_bad_value(e, "priority", json_object_get(body, "priority"),
                             "priority must fit in 32 bits");
    p->priority = (int)priority;
    p->seed = (uint64_t)seed;
    if (seed == -1 && getrandom(&p->seed, sizeof p->seed, 0) != sizeof p->seed)
        return api_fail(e, 500, "InternalServerError", NULL, "the system gives no random numbers");
    return 0;
}

static int read_bias(struct request_sampling *s, int vocab, const json_t *body, struct api_error *e)
{
    const json_t *map;
    int set = field_object(body, "logit_bias", &map, e);
    if (set <= 0)
        return set;
    size_t n = json_object_size(map);
    if (n > (size_t)vocab)
        return api_fail(e, 400, "BadRequestError", "logit_bias", "logit_bias has %zu entries for %d tokens",
                        n, vocab);
    s->bias = mem_zalloc(n + 1, sizeof *s->bias);
    const char *key;
    json_t *v;
    int i = 0;
    json_object_foreach((json_t *)(uintptr_t)map, key, v)
    {
        char *end;
        long long id = strtoll(key, &end, 10);
        if (end == key || *end || key[strspn(key, "0123456789")])
            return api_fail(
                e, 400, "Bad Request", "body.logit_bias",
                "1 validation error: the keys of body.logit_bias must be token ids, not \"%.40s\"", key);
        if (id < 0 || id >= vocab)
            return api_fail(e, 400, "BadRequestError", "logit_bias",
                            "logit_bias names token id %.40s, but the vocabulary is 0 to %d "
                            "(parameter=logit_bias, value=%.40s)",
                            key, vocab - 1, key);
        double bias;
        if (json_is_null(v) || !value_float(v, &bias))
            return api_bad_type(e, "logit_bias", v, "an object of finite numbers");
        s->bias[i++] = (struct sluice_bias){(int32_t)id, (float)fmax(-100, fmin(100, bias))};
    }
    s->p.logit_bias = s->bias;
    s->p.n_logit_bias = i;
    return 0;
}

static int add_stop_string(struct request_sampling *s, const json_t *v, struct api_error *e)
{
    size_t len = json_string_length(v);
    if (len == 0)
        return api_bad_value(e, "stop", v, "a stop string cannot be empty");
    if (len > API_MAX_STOP_STRING_LEN)
        return api_bad_value(e, "stop", v, "a stop string may be at most %d bytes long",
                             API_MAX_STOP_STRING_LEN);
    s->stops[s->n_stops++] = (struct stop_string){mem_strndup(json_string_value(v), len), len};
    return 0;
}

static int read_stop_strings(struct request_sampling *s, const json_t *body, struct api_error *e)
{
    const json_t *v = json_object_get(body, "stop");
    if (!v || json_is_null(v))
        return 0;
    if (json_is_string(v))
        return add_stop_string(s, v, e);
    if (!json_is_array(v))
        return api_bad_type(e, "stop", v, "a string or a list of strings");
    if (json_array_size(v) > API_MAX_STOP_STRINGS)
        return api_bad_value(e, "stop", v, "at most %d stop strings are allowed", API_MAX_STOP_STRINGS);
    for (size_t i = 0; i < json_array_size(v); i++) {
        char path[32];
        snprintf(path, sizeof path, "stop.%zu", i);
        if (!json_is_string(json_array_get(v, i)))
            return api_bad_type(e, path, json_array_get(v, i), "a string");
        if (add_stop_string(s, json_array_get(v, i), e))
            return -1;
    }
    return 0;
}

/* The ids that end the answer: the client's, and the model's own unless it ignores them. */
static int read_stop_ids(struct request_sampling *s, const struct api_model *m, const json_t *body,
                         struct api_error *e)
{
    int32_t *asked = NULL;
    int n_asked = 0;
    if (field_ids(body, "stop_token_ids", m->vocab, API_MAX_STOP_TOKEN_IDS, &asked, &n_asked, e) < 0)
        return -1;
    s->stop_ids = mem_zalloc((size_t)(n_asked + m->n_stop_ids) + 1, sizeof *s->stop_ids);
    int n = 0;
    for (int i = 0; i < n_asked; i++)
        s->stop_ids[n++] = asked[i];
    for (int i = 0; i < m->n_stop_ids && !s->ignore_eos; i++)
        s->stop_ids[n++] = m->stop_ids[i];
    free(asked);
    s->p.stop_ids = s->stop_ids;
    s->p.n_stop_ids = n;
    return 0;
}

/* max_tokens, its chat name max_completion_tokens, and min_tokens. */
static int read_lengths(struct request_sampling *s, const struct api_model *m, enum api_kind kind,
                        const json_t *body, struct api_error *e)
{
    bool echo = false;
    if (kind == API_COMPLETION && field_bool(body, "echo", &echo, e) < 0)
        return -1;
    int64_t max_tokens = -1;
    int set = 0;
    s->max_tokens_field = "max_completion_tokens";
    if (kind == API_CHAT)
        set = field_int(body, "max_completion_tokens", &max_tokens, e);
    if (set == 0) {
        s->max_tokens_field = "max_tokens";
        set = field_int(body, "max_tokens", &max_tokens, e);
    }
    if (set < 0)
        return -1;
    const json_t *given = json_object_get(body, s->max_tokens_field);
    if (set && (max_tokens < 0 || (max_tokens == 0 && !echo)))
        return api_bad_value(e, s->max_tokens_field, given, "%s must be at least 1%s", s->max_tokens_field,
                             kind == API_COMPLETION ? ", or 0 together with echo" : "");
    if (set && max_tokens > m->max_model_len)
        return api_bad_value(e, s->max_tokens_field, given,
                             "%s is too large: this model's maximum context length is %d tokens",
                             s->max_tokens_field, m->max_model_len);
    if (!set && kind == API_COMPLETION)
        max_tokens = 16;
    else if (!set && m->defaults.max_tokens > 0)
        max_tokens = m->defaults.max_tokens < m->max_model_len ? m->defaults.max_tokens : m->max_model_len;
    int64_t cap = m->defaults.max_tokens_cap;
    if (cap > 0 && (max_tokens < 0 || max_tokens > cap))
        max_tokens = cap;
    s->max_tokens = max_tokens;

    int64_t min_tokens = 0;
    if (field_int(body, "min_tokens", &min_tokens, e) < 0)
        return -1;
    if (min_tokens < 0 || min_tokens > (max_tokens >= 0 ? max_tokens : m->max_model_len))
        return api_bad_value(e, "min_tokens", json_object_get(body, "min_tokens"),
                             "min_tokens must be at least 0 and at most max_tokens, which is %lld",
                             (long long)(max_tokens >= 0 ? max_tokens : m->max_model_len));
    s->p.min_tokens = (int)min_tokens;
    return 0;
}

/* logprob_token_ids: whose log-probabilities are told in place of the likeliest ones'. */
static int read_logprob_ids(struct request_sampling *s, const struct api_model *m, const json_t *body,
                            struct api_error *e)
{
    int n = 0;
    bool echo = false;
    int set = field_ids(body, "logprob_token_ids", m->vocab, SLUICE_MAX_LOGPROB_IDS, &s->logprob_ids, &n, e);
    if (set <= 0)
        return set;
    const json_t *v = json_object_get(body, "logprob_token_ids");
    if (s->p.n_logprobs < 0)
        return api_bad_value(e, "logprob_token_ids", v, "logprob_token_ids needs logprobs");
    if (n == 0)
        return api_bad_value(e, "logprob_token_ids", v,
                             "logprob_token_ids must not be empty: leave it out for the likeliest");
    if (field_bool(body, "echo", &echo, e) < 0)
        return -1;
    if (echo)
        return api_bad_value(e, "logprob_token_ids", v, "logprob_token_ids cannot go with echo");
    s->p.logprob_ids = s->logprob_ids;
    s->p.n_logprobs = n;
    return 0;
}

/* How many alternatives each answer token comes with: chat says logprobs: true and top_logprobs: k,
 * completions say logprobs: k. */
static int read_logprobs(struct request_sampling *s, const struct api_model *m, enum api_kind kind,
                         const json_t *body, struct api_error *e)
{
    const char *field = kind == API_CHAT ? "top_logprobs" : "logprobs";
    int64_t k = 0;
    int set = field_int(body, field, &k, e);
    bool wanted = set > 0;
    if (set < 0)
        return -1;
    if (kind == API_CHAT) {
        wanted = false;
        if (field_bool(body, "logprobs", &wanted, e) < 0)
            return -1;
        if (k != 0 && !wanted)
            return api_bad_value(e, field, json_object_get(body, field), "top_logprobs needs logprobs: true");
    }
    if (k < 0 || k > m->limits.max_logprobs)
        return api_bad_value(e, field, json_object_get(body, field), "%s must be 0 to %d (--max-logprobs)",
                             field, m->limits.max_logprobs);
    s->p.n_logprobs = wanted ? (int)k : -1;
    return read_logprob_ids(s, m, body, e);
}

/* One bad word as the tokens that would write it. */
static int add_bad_word(struct request_sampling *s, const struct api_model *m, const char *text, size_t len,
                        bool spaced, const char *path, const json_t *v, struct api_error *e)
{
    struct token_list ids = {0};
    struct err why = {0};
    struct str word = {0};
    if (spaced)
        str_addc(&word, ' ');
    str_add(&word, text, len);
    int failed = tokenizer_encode(m->tokenizer, str_text(&word), word.len, NULL, 0, 0, &ids, &why);
    str_free(&word);
    struct sluice_word *list = (struct sluice_word *)(uintptr_t)s->p.bad_words;
    const struct sluice_word *plain = spaced ? &list[s->p.n_bad_words - 1] : NULL;
    if (failed) {
        api_from_err(e, path, &why);
    } else if (ids.n == 0 || s->p.n_bad_words == API_MAX_BAD_WORDS) {
        failed = api_bad_value(e, path, v,
                               ids.n ? "bad_words makes more than %d sequences of tokens"
                                     : "a bad word must be text (at most %d sequences)",
                               API_MAX_BAD_WORDS);
    } else if (!plain || (int)ids.n < plain->n ||
               memcmp(ids.ids + ids.n - (size_t)plain->n, plain->ids, (size_t)plain->n * sizeof *ids.ids) !=
                   0) {
        list[s->p.n_bad_words++] = (struct sluice_word){ids.ids, (int)ids.n};
        return 0;
    }
    token_list_free(&ids);
    return failed;
}

/* bad_words: each as it is at the beginning of a text, and behind a space where that does not end in the same
 * tokens. */
static int read_bad_words(struct request_sampling *s, const struct api_model *m, const json_t *body,
                          struct api_error *e)
{
    const json_t *words, *v;
    int set = field_array(body, "bad_words", &words, e);
    if (set <= 0)
        return set;
    s->p.bad_words = mem_zalloc(API_MAX_BAD_WORDS, sizeof *s->p.bad_words);
    size_t i;
    json_array_foreach(words, i, v)
    {
        char path[32];
        snprintf(path, sizeof path, "bad_words.%zu", i);
        if (!json_is_string(v))
            return api_bad_type(e, path, v, "a string");
        const char *text = json_string_value(v);
        size_t len = json_string_length(v);
        if (len > API_MAX_STOP_STRING_LEN)
            return api_bad_value(e, path, v, "a bad word may be at most %d bytes long",
                                 API_MAX_STOP_STRING_LEN);
        while (len && *text == ' ')
            text++, len--;
        if (add_bad_word(s, m, text, len, false, path, v, e) ||
            add_bad_word(s, m, text, len, true, path, v, e))
            return -1;
    }
    return 0;
}

/* What would change the answer and is not served yet is refused, never silently ignored. */
static int refuse_unserved(const json_t *body, struct api_error *e)
{
    bool beam = false;
    if (field_bool(body, "use_beam_search", &beam, e) < 0)
        return -1;
    if (beam)
        return api_bad_value(e, "use_beam_search", json_object_get(body, "use_beam_search"),
                             "beam search is not supported by this server");
    return 0;
}

static int read_salt(struct sluice_sampling *p, const json_t *body, struct api_error *e)
{
    const json_t *salt;
    int set = field_string(body, "cache_salt", &salt, e);
    if (set <= 0)
        return set;
    const char *text = json_string_value(salt);
    size_t len = json_string_length(salt);
    if (len == 0 || answer_characters(text, len) > 128 || memchr(text, '\0', len) || strpbrk(text, "@/\\"))
        return api_bad_value(e, "cache_salt", salt,
                             "cache_salt must be 1 to 128 characters, none of them @, / or \\");
    salt_digest(text, len, p->cache_salt);
    return 0;
}

int request_sampling_read(struct request_sampling *s, const struct api_model *m, enum api_kind kind, int n,
                          const json_t *body, struct api_error *e)
{
    memset(s, 0, sizeof *s);
    sluice_sampling_init(&s->p);
    s->skip_special = true;
    if (refuse_unserved(body, e) || read_floats(&s->p, &m->defaults, body, e) ||
        read_integers(&s->p, m, body, e) || read_lengths(s, m, kind, body, e) ||
        read_logprobs(s, m, kind, body, e) || read_bias(s, m->vocab, body, e) ||
        read_stop_strings(s, body, e) || read_salt(&s->p, body, e) || read_bad_words(s, m, body, e) ||
        repetition_rule_read(&s->repetition, body, e))
        return -1;
    if (n > 1 && s->p.temperature == 0)
        return api_bad_value(
            e, "n", json_object_get(body, "n"),
            "n must be 1 when sampling is greedy (temperature 0): all answers would be equal");
    if (field_bool(body, "ignore_eos", &s->ignore_eos, e) < 0 ||
        field_bool(body, "include_stop_str_in_output", &s->include_stop, e) < 0 ||
        field_bool(body, "skip_special_tokens", &s->skip_special, e) < 0 || read_stop_ids(s, m, body, e))
        return -1;
    int set =
        field_ids(body, "allowed_token_ids", m->vocab, (size_t)m->vocab, &s->allowed, &s->p.n_allowed_ids, e);
    if (set < 0)
        return -1;
    if (set && s->p.n_allowed_ids == 0)
        return api_bad_value(e, "allowed_token_ids", json_object_get(body, "allowed_token_ids"),
                             "allowed_token_ids must not be empty: leave it out to allow all");
    s->p.allowed_ids = s->allowed;
    return 0;
}

void request_sampling_free(struct request_sampling *s)
{
    free(s->bias);
    free(s->allowed);
    free(s->stop_ids);
    free(s->logprob_ids);
    for (int i = 0; i < s->p.n_bad_words; i++)
        free((void *)(uintptr_t)s->p.bad_words[i].ids);
    free((void *)(uintptr_t)s->p.bad_words);
    for (int i = 0; i < s->n_stops; i++)
        free(s->stops[i].text);
}
