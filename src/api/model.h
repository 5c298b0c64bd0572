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
    int64_t top_k;      /* 0 = all */
    int64_t max_tokens; /* chat only; 0 = all that is left of the context */
};

/* OpenAI's defaults, and (with `from`) over them what the checkpoint's generation config says: Hugging Face's
 * generation_config.json, or the general.sampling.* keys of a GGUF. Values out of range are left out with a
 * warning in the log. */
void sampling_defaults_read(struct sampling_defaults *d, const struct model_file *from);

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
    struct response_store *responses;                /* NULL: /v1/responses keeps nothing */

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
