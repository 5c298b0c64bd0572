/* POST /v1/responses: OpenAI's newer protocol. The conversation comes as items (messages, thoughts, calls and
 * their results) and the answer goes out as items; a stream tells by numbered events how each of them grows.
 *
 *   responses_request.c  body -> chat request
 *   responses_answer.c   what the model wrote -> items, whole or streamed
 *   responses_store.c    answers kept, so that a later request may go on from one */
#ifndef SLUICE_API_RESPONSES_H
#define SLUICE_API_RESPONSES_H

#include <jansson.h>

#include "api/generation.h"
#include "api/request.h"

enum item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL };

/* What is kept of a request for its answer: api_request.told. */
struct responses {
    struct str echo; /* ,"field":value,… that the response repeats from the request */
    struct str
        conversation; /* where it is stored: the messages so far, "[{…},{…}" without the last bracket */
    bool stored;
    bool cancelled; /* in the background, by responses_cancel */
    uint64_t id;    /* names its items */

    /* a stream, so far */
    int sequence;     /* of the next event */
    int n_items;      /* begun */
    enum item open;   /* the last of them, while it grows */
    struct parts all; /* that was told */
};

/* As api_request_read, for a body of this protocol. */
struct api_request *responses_read(const struct api_model *m, const json_t *body, const char *request_id,
                                   bool id_is_header, struct api_error *e);
/* Answers POST /v1/responses/input_tokens: what the prompt of such a body would hold. */
int responses_count_tokens(const struct api_model *m, const json_t *body, struct str *out,
                           struct api_error *e);

/* Cancels an answer that is made in the background, and writes what it is from now on. */
void responses_cancel(struct generation *g, struct str *out);

extern const struct answer_writer responses_writer;

#endif
