/* A chat template: parsed (which renders probes) and rendered. Limits on steps, depth and output must end it.
 */
#include "fuzz.h"

#include <jansson.h>
#include <stdlib.h>

#include "base/log.h"
#include "chat/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    log_set_level(LOG_LEVEL_OFF);
    struct err e = {0};
    struct chat_template *t = chat_template_parse((const char *)data, size, &e);
    if (!t) {
        fuzz_check(e.code != ERR_NONE && e.msg[0], "a refused template has a reason");
        return 0;
    }
    json_t *context =
        json_pack("{s:[{s:s,s:s},{s:s,s:s},{s:s,s:s}], s:b, s:s, s:s}", "messages", "role", "system",
                  "content", "Be kind.", "role", "user", "content", "Hi <s> \xc3\xa9", "role", "assistant",
                  "content", "Hello", "add_generation_prompt", 1, "bos_token", "<s>", "eos_token", "</s>");
    struct chat_text text;
    if (chat_template_render(t, context, 1700000000, &text, &e) == 0) {
        for (size_t i = 0; i < text.len; i++)
            fuzz_check(text.literal[i] <= 1, "every byte is marked");
        chat_text_free(&text);
    }
    json_decref(context);
    chat_template_free(t);
    return 0;
}
