/* POST /v1/chat/completions/batch: several conversations in one body, one answer to each. */
#ifndef SLUICE_API_CHAT_BATCH_H
#define SLUICE_API_CHAT_BATCH_H

#include "api/request.h"

/* As api_request_read, for a body whose `messages` is a list of conversations. The answers are the choices of
 * one chat completion, in the conversations' order. */
struct api_request *chat_batch_read(const struct api_model *m, const json_t *body, const char *request_id,
                                    bool id_is_header, struct api_error *e);

#endif
