/* A GGUF file: opened, every key and tensor looked at, and read as a tokenizer and a chat template. */
#include "fuzz.h"

#include <string.h>

#include "base/log.h"
#include "chat/template.h"
#include "file/gguf.h"
#include "file/model_file.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    log_set_level(LOG_LEVEL_OFF);
    struct err e = {0};
    struct model_file *f = model_file_open(fuzz_file("model.gguf", data, size), &e);
    if (!f) {
        fuzz_check(e.code != ERR_NONE && e.msg[0], "a refused file has a reason");
        return 0;
    }
    for (int64_t i = 0; i < gguf_count(f->gguf); i++) {
        const char *type;
        char text[100];
        gguf_describe(f->gguf, i, &type, text, sizeof text);
        fuzz_check(memchr(text, 0, sizeof text) != NULL, "a description ends");
    }
    unsigned sum = 0;
    for (int i = 0; i < f->n_tensors; i++) { /* first and last byte: inside the mapping, or this crashes */
        const struct tensor *t = &f->tensors[i];
        fuzz_check(model_file_tensor(f, t->name) == t, "a tensor is found by its name");
        if (t->bytes)
            sum += ((const uint8_t *)t->data)[0] + ((const uint8_t *)t->data)[t->bytes - 1];
    }
    fuzz_check(sum < UINT32_MAX, "sum");
    struct tokenizer *t = tokenizer_open(f, &e);
    if (t) {
        struct token_list ids = {0};
        tokenizer_encode(t, "Hello, <s>world 12", 18, NULL, TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL,
                         0, &ids, &e);
        for (size_t i = 0; i < ids.n; i++)
            fuzz_check(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_size(t), "ids are in the vocabulary");
        token_list_free(&ids);
        tokenizer_free(t);
    }
    if (f->chat_template)
        chat_template_free(chat_template_parse(f->chat_template, strlen(f->chat_template), &e));
    model_file_close(f);
    return 0;
}
