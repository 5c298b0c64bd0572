/* A generation request as the server understands it: a chat or completion body, validated, rendered and
 * tokenised. Reading one can take a second (a megabyte of prompt), so it is done by worker threads. */
#ifndef SLUICE_API_REQUEST_H
#define SLUICE_API_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/errors.h"
#include "api/model.h"
#include "api/output.h"
#include "api/repetition.h"
#include "sluice.h"
#include "text/tokenizer.h"

#define API_MAX_STOP_STRINGS    4
#define API_MAX_STOP_STRING_LEN 2048 /* bytes */
#define API_MAX_STOP_TOKEN_IDS  1024
#define API_MAX_BAD_WORDS       128 /* sequences of tokens */

enum api_kind { API_CHAT, API_COMPLETION };

struct prompt {
    struct token_list ids;
    int *borders; /* [n_borders] positions behind the messages of a chat */
    int n_borders;
    struct str text; /* completions with echo: the prompt as it is shown before the answer */
};

/* How tokens are chosen and the answer ends. */
struct request_sampling {
    struct sluice_sampling p; /* its arrays are the ones below; max_tokens is filled in for each prompt */
    struct sluice_bias *bias;
    int32_t *allowed, *stop_ids, *logprob_ids;
    struct stop_string stops[API_MAX_STOP_STRINGS];
    int n_stops;
    bool include_stop, ignore_eos, skip_special;
    struct repetition_rule repetition;
    int64_t max_tokens; /* asked for; -1 = not said */
    const char *max_tokens_field;
};

struct answer_writer; /* generation.h */

struct api_request {
    enum api_kind kind;
    /* other protocols that say the same (responses.c, messages.c) */
    const struct answer_writer *writer; /* NULL: by kind */
    void *told;                         /* the writer's own, from the request on */
    void (*told_free)(void *told);
    bool background; /* the client does not wait: it gets writer->accepted, and asks again */
    char *id;        /* "chatcmpl-…" or "cmpl-…" */
    int64_t created; /* seconds since the epoch */
    bool stream, include_usage, continuous_usage;
    bool echo;          /* completions: the prompt comes first; chat: echo_text does */
    bool tokens_as_ids; /* "token_id:17" in place of token text in log-probabilities */
    bool return_token_ids;
    int stream_interval;  /* tokens an event, at least */
    int prompt_logprobs;  /* the field; -1 = not asked for */
    int n;                /* answers to each prompt */
    char *role;           /* chat: of the answer */
    struct str echo_text; /* chat with echo: the text that the answer continues */
    struct output_parsing parsing;
    json_t *tools;             /* chat: those that the answer may call, or NULL */
    bool hide_reasoning;       /* include_reasoning: false */
    struct grammar *grammar;   /* of the answer, or NULL */
    struct token_list end_ids; /* what ends a thought that has used up its budget */
    struct request_sampling sampling;
    struct prompt *prompts; /* [n_prompts] */
    int n_prompts;
};

/* Reads a parsed body. `request_id` names the request when the body does not, or overrides it when
 * `id_is_header`. NULL and *e when it must be refused. */
struct api_request *api_request_read(const struct api_model *m, enum api_kind kind, const json_t *body,
                                     const char *request_id, bool id_is_header, struct api_error *e);
void api_request_free(struct api_request *r);
/* Refuses answers that could pass the bounds of one request; api_request_read has asked it already. */
int request_check_size(const struct api_request *r, const struct api_model *m, struct api_error *e);

/* sampling.c: the fields common to all generation routes. */
int request_sampling_read(struct request_sampling *s, const struct api_model *m, enum api_kind kind, int n,
                          const json_t *body, struct api_error *e);
void request_sampling_free(struct request_sampling *s);

/* The text of the last message where it has one (a string, or parts that end in text), else NULL. */
const json_t *prompt_last_text(const json_t *messages);

/* What the rendering of a chat tells besides its ids. Zero-initialise; free with chat_prompt_free. */
struct chat_prompt {
    enum thought start; /* how the answer begins */
    json_t *tools;      /* as the template was given them; NULL = none */
    struct str *text;   /* borrowed: where the text goes that is tokenized; or NULL */
};
void chat_prompt_free(struct chat_prompt *p);

/* prompt.c: messages of a chat body -> text -> ids, for chat and for /tokenize. */
int prompt_render_chat(const struct api_model *m, const json_t *body, bool limit, struct token_list *ids,
                       struct chat_prompt *p, struct api_error *e);
int prompt_encode_text(const struct api_model *m, const char *text, size_t len, bool add_special, bool limit,
                       struct token_list *ids, struct api_error *e);
/* Applies truncate_prompt_tokens, and refuses a prompt that leaves no room in the context. */
int prompt_fit(const struct api_model *m, const json_t *body, bool scored_only, struct token_list *ids,
               struct api_error *e);

#endif
