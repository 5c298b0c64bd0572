#include "api/llamacpp.h"

#include <stdlib.h>

#include "api/fields.h"
#include "api/json_write.h"
#include "api/request.h"
#include "base/version.h"

/* A piece is text, or, where a token is a part of a character, its bytes. */
static void write_piece(const struct api_model *m, int32_t id, struct str *out)
{
    size_t len;
    const char *bytes = tokenizer_bytes(m->tokenizer, id, &len);
    str_addf(out, "{\"id\":%d,\"piece\":", id);
    if (utf8_valid_prefix(bytes, len) == len) {
        json_write_string(out, bytes, len);
    } else {
        for (size_t i = 0; i < len; i++)
            str_addf(out, "%c%d", i ? ',' : '[', (unsigned char)bytes[i]);
        str_addc(out, ']');
    }
    str_addc(out, '}');
}

int llamacpp_tokenize(const struct api_model *m, const json_t *body, struct str *out, struct api_error *e)
{
    const json_t *content;
    bool add_special = false, parse_special = true, pieces = false;
    if (field_string(body, "content", &content, e) < 0 ||
        field_bool(body, "add_special", &add_special, e) < 0 ||
        field_bool(body, "parse_special", &parse_special, e) < 0 ||
        field_bool(body, "with_pieces", &pieces, e) < 0)
        return -1;
    unsigned flags =
        (add_special ? TOKENIZER_ADD_SPECIAL : 0) | (parse_special ? TOKENIZER_PARSE_SPECIAL : 0);
    struct token_list ids = {0};
    struct err why = {0};
    int failed = tokenizer_encode(m->tokenizer, json_string_value(content), json_string_length(content), NULL,
                                  flags, 0, &ids, &why);
    if (failed) {
        api_from_err(e, "content", &why);
    } else if (pieces) {
        str_adds(out, "{\"tokens\":[");
        for (size_t i = 0; i < ids.n; i++) {
            if (i)
                str_addc(out, ',');
            write_piece(m, ids.ids[i], out);
        }
        str_adds(out, "]}");
    } else {
        str_adds(out, "{\"tokens\":");
        json_write_ids(out, ids.ids, (int)ids.n);
        str_addc(out, '}');
    }
    token_list_free(&ids);
    return failed ? -1 : 0;
}

int llamacpp_apply_template(const struct api_model *m, const json_t *body, struct str *out,
                            struct api_error *e)
{
    struct token_list ids = {0};
    struct str text = {0};
    struct chat_prompt chat = {.text = &text};
    int failed = api_model_check_name(m, body, e) || prompt_render_chat(m, body, false, &ids, &chat, e);
    if (!failed) {
        str_adds(out, "{\"prompt\":");
        json_write_string(out, str_text(&text), text.len);
        str_addc(out, '}');
    }
    chat_prompt_free(&chat);
    str_free(&text);
    token_list_free(&ids);
    return failed ? -1 : 0;
}

static void write_token(const struct api_model *m, const char *name, int32_t id, struct str *out)
{
    size_t len = 0;
    const char *text = id >= 0 ? tokenizer_bytes(m->tokenizer, id, &len) : "";
    str_addf(out, ",\"%s\":", name);
    json_write_string(out, text, len);
}

void llamacpp_props(const struct api_model *m, struct str *out)
{
    const struct sampling_defaults *d = &m->defaults;
    str_addf(out,
             "{\"default_generation_settings\":{\"n_ctx\":%d,\"params\":{\"temperature\":%.7g,\"top_k\":%lld,"
             "\"top_p\":%.7g,\"min_p\":%.7g,\"repeat_penalty\":%.7g,\"presence_penalty\":%.7g,"
             "\"frequency_penalty\":%.7g}}",
             m->max_model_len, d->temperature, (long long)d->top_k, d->top_p, d->min_p, d->repetition_penalty,
             d->presence_penalty, d->frequency_penalty);
    str_addf(out, ",\"total_slots\":%d,\"model_alias\":", sluice_plan(m->engine)->max_num_seqs);
    json_write_text(out, m->names[0]);
    str_adds(out, ",\"model_path\":");
    json_write_text(out, m->root);
    str_adds(out, ",\"chat_template\":");
    json_write_text(out, m->template ? chat_template_source(m->template) : "");
    write_token(m, "bos_token", tokenizer_bos(m->tokenizer), out);
    write_token(m, "eos_token", tokenizer_eos(m->tokenizer), out);
    str_adds(out, ",\"modalities\":{\"vision\":false,\"audio\":false},\"is_sleeping\":false,\"build_info\":"
                  "\"sluice-" SLUICE_VERSION "\"}");
}
