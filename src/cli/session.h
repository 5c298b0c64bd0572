/* A conversation in one process: messages kept, each turn rendered by the chat template, encoded, run on the
 * engine step by step, and handed out as text while it is made. */
#ifndef SLUICE_CLI_SESSION_H
#define SLUICE_CLI_SESSION_H

#include <jansson.h>
#include <signal.h>

#include "chat/template.h"
#include "sluice.h"
#include "text/tokenizer.h"

#define SESSION_MAX_STOP_IDS 32

struct session {
    struct sluice *engine;
    const struct tokenizer *tokenizer;
    const struct chat_template *template; /* NULL: each turn continues its text as it stands */
    json_t *messages;                     /* array of {role, content} */
    struct sluice_sampling sampling;      /* stop_ids are filled in by session_open */
    int32_t stop_ids[SESSION_MAX_STOP_IDS];
    const volatile sig_atomic_t *interrupted; /* NULL, or non-zero ends the answer */
};

struct session_answer {
    int prompt_tokens, cached_tokens, tokens;
    int forgotten; /* oldest messages dropped because the context was full */
    enum sluice_finish finish;
    double first_seconds;  /* until the first token */
    double decode_seconds; /* from the first to the last */
    double decode_bytes;   /* weights, KV and state that the steps after the first token moved */
};

/* The parts are borrowed; sampling's stop ids become the tokenizer's. */
void session_open(struct session *s, struct sluice *engine, const struct tokenizer *t,
                  const struct chat_template *template, const struct sluice_sampling *sampling);
void session_close(struct session *s);

/* Forgets all messages and starts with the system message `text` (NULL = none). */
void session_reset(struct session *s, const char *text);

/* Adds the user's text [len], runs the answer, and gives its pieces to `emit` as they come. The answer joins
 * the messages, also when it was interrupted. On failure -1 and *e, and the messages are as before. */
int session_ask(struct session *s, const char *text, size_t len,
                void (*emit)(void *arg, const char *text, size_t len), void *arg, struct session_answer *out,
                struct err *e);

#endif
