/* POST /v1/chat/completions/render and /v1/completions/render: the token ids that a body would have computed,
 * for routers that place requests by their prompts. The body is checked as if it were to be answered. */
#ifndef SLUICE_API_RENDER_H
#define SLUICE_API_RENDER_H

#include "api/request.h"

/* {"request_id", "model", "token_ids", …} of a chat; a list of these, one for each prompt, of completions. */
void render_write(const struct api_model *m, const struct api_request *r, struct str *out);

#endif
