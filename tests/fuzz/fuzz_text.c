/* Any bytes as text, through the tokenizer and back. Byte-level BPE loses nothing: valid text comes back. */
#include "fuzz.h"

#include <string.h>

#include "base/log.h"
#include "base/str.h"
#include "text/tokenizer.h"

static struct tokenizer *tokenizer(void)
{
    static struct tokenizer *t;
    if (!t) {
        struct err e;
        log_set_level(LOG_LEVEL_OFF);
        struct model_file *f = model_file_open(SLUICE_SOURCE_DIR "/tests/fixtures/models/qwen2-tiny", &e);
        fuzz_check(f != NULL && (t = tokenizer_open(f, &e)), "the tokenizer opens");
        model_file_close(f);
    }
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *t = tokenizer();
    const char *text = (const char *)data;
    struct token_list ids = {0};
    struct str back = {0}, streamed = {0};
    struct err e;
    for (unsigned flags = 0; flags < 4; flags++) {
        ids.n = 0;
        str_clear(&back);
        str_clear(&streamed);
        fuzz_check(tokenizer_encode(t, text, size, NULL, flags, 0, &ids, &e) == 0,
                   "any bytes can be encoded");
        tokenizer_decode(t, ids.ids, ids.n, false, &back);
        struct detokenizer d;
        detokenizer_init(&d, t, false);
        for (size_t i = 0; i < ids.n; i++) {
            fuzz_check(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_size(t), "ids are in the vocabulary");
            detokenizer_add(&d, ids.ids[i], &streamed);
        }
        detokenizer_flush(&d, &streamed);
        fuzz_check(back.len == streamed.len &&
                       (back.len == 0 || memcmp(back.data, streamed.data, back.len) == 0),
                   "streamed text is the whole text");
        fuzz_check(utf8_valid_prefix(str_text(&back), back.len) == back.len, "decoded text is valid");
    }
    token_list_free(&ids);
    str_free(&back);
    str_free(&streamed);
    return 0;
}
