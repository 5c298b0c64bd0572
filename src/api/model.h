/* What requests are read against: the served model's engine, tokenizer, template, names, limits and sampling
 * defaults. Filled once when the model is loaded, read by every thread after that. */
#ifndef SLUICE_API_MODEL_H
#define SLUICE_API_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "api/errors.h"
#include "api/formats.h"
#include "base/error.h"
#include "base/str.h"
#include "chat/template.h"
#include "file/model_file.h"
#include "sluice.h"
#include "text/tokenizer.h"

#define API_MAX_STOP_IDS 32

/* What a request that does not say gets. */
struct sampling_defaults {
    double temperature, top_p, min_p;
    double repetition_penalty, presence_penalty, frequency_penalty;
    int64_t top_k;          /* 0 = all */
    int64_t max_tokens;     /* chat only; 0 = all that is left of the context */
    int64_t max_tokens_cap; /* of every request; 0 = none */
};

/* OpenAI's defaults, and (with `from`) over them what the checkpoint's generation config says: Hugging Face's
 * generation_config.json, or the general.sampling.* keys of a GGUF. Values out of range are left out with a
 * warning in the log. */
void sampling_defaults_read(struct sampling_defaults *d, const struct model_file *from);
/* Sets over them what a generation config (a JSON object) says. Its max_new_tokens is a cap for every
 * request. -1 and *e for a value out of range, and with `strict` for a name that is none of theirs. */
int sampling_defaults_override(struct sampling_defaults *d, const json_t *config, bool strict, struct err *e);
/* Whether requests (and --default-chat-template-kwargs) may set this variable of the chat template. */
bool api_may_set_variable(const char *name);

struct api_limits {
    int max_logprobs;  /* the most alternatives a request may ask for */
    int max_prompts;   /* of one completion request */
    int max_choices;   /* prompts x n of one request */
    size_t max_answer; /* bytes of tokens and log-probabilities kept for one request */
    int max_json_depth;
    size_t max_grammars; /* bytes of compiled grammars kept for requests to come */
};
void api_limits_init(struct api_limits *l);

struct response_store; /* responses_store.h */

struct api_model {
    struct sluice *engine;
    const struct tokenizer *tokenizer;
    const struct chat_template *template; /* NULL: the checkpoint has none, and chat is refused */
    const char *const *names;             /* [n_names] served names; the first is reported */
    int n_names;
    const char *root; /* the path it was loaded from */
    struct sampling_defaults defaults;
    struct api_limits limits;
    bool prompt_tokens_details;                      /* usage says how many prompt tokens were cached */
    bool request_metrics;                            /* answers tell their times */
    const char *reasoning_parser, *tool_call_parser; /* by name; NULL = as the template shows */
    bool no_auto_tool_choice;                        /* tools are only for tool_choice "none" */
    /* what requests get that do not say, beside the sampling defaults */
    int stream_interval;              /* tokens an event of a stream, at least; 0 = 1 */
    bool force_usage;                 /* streams tell their usage in every event and at the end */
    bool tokens_as_ids;               /* log-probabilities name tokens by id */
    const char *response_role;        /* NULL = assistant */
    const json_t *template_kwargs;    /* an object of template variables, or NULL */
    const char *template_text;        /* the template's source, for /tokenizer_info; may be NULL */
    bool trust_request_template;      /* requests may bring their own chat_template */
    bool exclude_tools_when_none;     /* tool_choice none hides the tools from the template too */
    bool any_name;                    /* requests may name any model */
    bool limits_thoughts;             /* thoughts may have … */
    int thinking_budget;              /* … so many tokens */
    bool compact_json;                /* structured outputs without white space between the tokens of JSON */
    const char *tool_strictness;      /* TOOL_STRICTNESS; NULL = off */
    struct response_store *responses; /* NULL: /v1/responses keeps nothing */

    /* filled by api_model_init */
    int vocab, max_model_len;
    int32_t stop_ids[API_MAX_STOP_IDS]; /* what ends an answer; the first is the primary EOS */
    int n_stop_ids;
    enum reasoning_format reasoning;
    enum tool_format tool_format;
    struct grammar_cache *grammars;
    char fingerprint[64];
};

/* Fills the last part from the first. */
void api_model_init(struct api_model *m);
/* Frees what api_model_init made; after the engine is closed, before the tokenizer is freed. */
void api_model_free(struct api_model *m);

/* 404 unless body.model is absent, empty or one of the served names. */
int api_model_check_name(const struct api_model *m, const json_t *body, struct api_error *e);

/* Bodies of GET /v1/models and GET /v1/models/{id}; the latter is -1 with *e for a name not served. */
void api_models_write(const struct api_model *m, int64_t now, struct str *out);
int api_model_write(const struct api_model *m, const char *id, int64_t now, struct str *out,
                    struct api_error *e);

#endif
