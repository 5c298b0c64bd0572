#include "api/render.h"

#include "api/json_write.h"

void render_write(const struct api_model *m, const struct api_request *r, struct str *out)
{
    bool list = r->kind == API_COMPLETION;
    for (int i = 0; i < r->n_prompts; i++) {
        const struct token_list *ids = &r->prompts[i].ids;
        str_adds(out, !list ? "{\"request_id\":" : i ? ",{\"request_id\":" : "[{\"request_id\":");
        json_write_text(out, r->id);
        str_adds(out, ",\"model\":");
        json_write_text(out, m->names[0]);
        str_adds(out, ",\"token_ids\":");
        json_write_ids(out, ids->ids, (int)ids->n);
        str_addf(out, ",\"stream\":%s,\"priority\":%d,\"sampling_params\":{\"n\":%d,\"temperature\":%.7g,",
                 r->stream ? "true" : "false", r->sampling.p.priority, r->n,
                 (double)r->sampling.p.temperature);
        str_addf(out, "\"top_p\":%.7g,\"top_k\":%d,\"max_tokens\":%lld}}", (double)r->sampling.p.top_p,
                 r->sampling.p.top_k,
                 (long long)(r->sampling.max_tokens >= 0 ? r->sampling.max_tokens
                                                         : m->max_model_len - (int64_t)ids->n));
    }
    if (list)
        str_addc(out, ']');
}
