#include "api/protocols.h"

#include <string.h>

#include "api/chat_batch.h"
#include "api/messages.h"
#include "api/responses.h"

static struct api_request *chat_read(const struct api_model *m, const json_t *body, const char *request_id,
                                     bool id_is_header, struct api_error *e)
{
    return api_request_read(m, API_CHAT, body, request_id, id_is_header, e);
}

static struct api_request *completion_read(const struct api_model *m, const json_t *body,
                                           const char *request_id, bool id_is_header, struct api_error *e)
{
    return api_request_read(m, API_COMPLETION, body, request_id, id_is_header, e);
}

const struct protocol *protocol_of(const char *path)
{
    static const struct protocol protocols[] = {
        {"/v1/chat/completions", chat_read},
        {"/v1/completions", completion_read},
        {"/v1/chat/completions/batch", chat_batch_read},
        {"/v1/responses", responses_read},
        {"/v1/messages", messages_read},
    };
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
        if (strcmp(path, protocols[i].path) == 0 || strcmp(path, protocols[i].path + strlen("/v1")) == 0)
            return &protocols[i];
    return NULL;
}
