/* POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol. Messages and answers are lists of
 * blocks (text, thinking, tool_use, tool_result); a stream tells by named events how each block grows.
 *
 *   messages_request.c   body -> chat request
 *   messages_answer.c    what the model wrote -> blocks, whole or streamed; refusals */
#ifndef SLUICE_API_MESSAGES_H
#define SLUICE_API_MESSAGES_H

#include <jansson.h>

#include "api/generation.h"
#include "api/request.h"

enum block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_TOOL_USE };

/* What is kept of a request for its answer: api_request.told. */
struct messages {
    uint64_t id;        /* names its calls */
    int n_blocks;       /* of a stream: begun */
    enum block open;    /* the last of them, while it grows */
    struct str thought; /* as streamed */
    bool begun;         /* message_start is out */
};

/* As api_request_read, for a body of this protocol. */
struct api_request *messages_read(const struct api_model *m, const json_t *body, const char *request_id,
                                  bool id_is_header, struct api_error *e);
/* Answers /v1/messages/count_tokens: the same body, without max_tokens. */
int messages_count_tokens(const struct api_model *m, const json_t *body, struct str *out,
                          struct api_error *e);

/* A refusal in this protocol's form. */
void messages_error_write(const struct api_error *e, struct str *out);

extern const struct answer_writer messages_writer;

#endif
