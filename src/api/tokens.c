#include "api/tokens.h"

#include <stdlib.h>

#include "api/fields.h"
#include "api/json_write.h"
#include "api/llamacpp.h"
#include "api/request.h"

int api_count_chat(const struct api_model *m, const json_t *body, size_t *n, struct api_error *e)
{
    struct token_list ids = {0};
    struct chat_prompt chat = {0};
    int failed = api_model_check_name(m, body, e) || prompt_render_chat(m, body, false, &ids, &chat, e);
    *n = ids.n;
    chat_prompt_free(&chat);
    token_list_free(&ids);
    return failed ? -1 : 0;
}

int api_tokenize(const struct api_model *m, const json_t *body, struct str *out, struct api_error *e)
{
    if (json_is_string(json_object_get(body, "content")) && !json_object_get(body, "prompt"))
        return llamacpp_tokenize(m, body, out, e);
    const json_t *prompt;
    bool strings = false;
    if (api_model_check_name(m, body, e) || field_bool(body, "return_token_strs", &strings, e) < 0)
        return -1;
    int set = field_string(body, "prompt", &prompt, e);
    if (set < 0)
        return -1;
    struct token_list ids = {0};
    int failed;
    if (set) {
        bool add_special = true;
        failed = field_bool(body, "add_special_tokens", &add_special, e) < 0 ||
                 prompt_encode_text(m, json_string_value(prompt), json_string_length(prompt), add_special,
                                    false, &ids, e);
    } else if (json_object_get(body, "messages")) {
        struct chat_prompt chat = {0};
        failed = prompt_render_chat(m, body, false, &ids, &chat, e);
        chat_prompt_free(&chat);
    } else {
        failed = api_missing(e, "prompt");
    }
    if (!failed) {
        str_addf(out, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":", ids.n, m->max_model_len);
        json_write_ids(out, ids.ids, (int)ids.n);
        str_adds(out, ",\"token_strs\":");
        for (size_t i = 0; strings && i < ids.n; i++) {
            size_t len;
            const char *name = tokenizer_name(m->tokenizer, ids.ids[i], &len);
            str_addc(out, i ? ',' : '[');
            json_write_string(out, name, len);
        }
        str_adds(out, !strings ? "null}" : ids.n ? "]}" : "[]}");
    }
    token_list_free(&ids);
    return failed ? -1 : 0;
}

int api_detokenize(const struct api_model *m, const json_t *body, struct str *out, struct api_error *e)
{
    int32_t *ids = NULL;
    int n = 0;
    if (api_model_check_name(m, body, e))
        return -1;
    int set = field_ids(body, "tokens", m->vocab, INT32_MAX, &ids, &n, e);
    if (set < 0)
        return -1;
    if (set == 0)
        return api_missing(e, "tokens");
    struct str text = {0};
    tokenizer_decode(m->tokenizer, ids, (size_t)n, false, &text);
    str_adds(out, "{\"prompt\":");
    json_write_string(out, str_text(&text), text.len);
    str_adds(out, ",\"content\":"); /* llama.cpp's name */
    json_write_string(out, str_text(&text), text.len);
    str_addc(out, '}');
    str_free(&text);
    free(ids);
    return 0;
}
