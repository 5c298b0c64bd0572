#include "api/tokenizer_info.h"

#include "api/json_write.h"

static void write_token(const struct tokenizer *t, const char *name, int32_t id, struct str *out)
{
    size_t len = 0;
    const char *text = id >= 0 ? tokenizer_bytes(t, id, &len) : NULL;
    str_addf(out, ",\"%s\":", name);
    if (text)
        json_write_string(out, text, len);
    else
        str_adds(out, "null");
}

void tokenizer_info_write(const struct api_model *m, struct str *out)
{
    const struct tokenizer *t = m->tokenizer;
    str_addf(out,
             "{\"tokenizer_class\":\"sluice\",\"vocab_size\":%d,\"model_max_length\":%d,\"add_bos_token\":%s",
             tokenizer_size(t), m->max_model_len, tokenizer_adds_bos(t) ? "true" : "false");
    write_token(t, "bos_token", tokenizer_bos(t), out);
    write_token(t, "eos_token", tokenizer_eos(t), out);
    str_adds(out, ",\"stop_token_ids\":");
    json_write_ids(out, m->stop_ids, m->n_stop_ids);
    str_adds(out, ",\"special_tokens\":{");
    const char *comma = "";
    for (int32_t id = 0; id < tokenizer_size(t); id++) {
        size_t len;
        if (!tokenizer_is_special(t, id))
            continue;
        const char *text = tokenizer_bytes(t, id, &len);
        str_addf(out, "%s\"%d\":", comma, id);
        json_write_string(out, text, len);
        comma = ",";
    }
    str_adds(out, "},\"chat_template\":");
    json_write_text(out, m->template_text);
    str_addc(out, '}');
}
