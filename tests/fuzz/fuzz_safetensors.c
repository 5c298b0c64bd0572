/* A directory whose model.safetensors is the input: opened, every tensor looked at. */
#include "fuzz.h"

#include "base/log.h"
#include "file/model_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char config[] = "{\"model_type\": \"llama\"}";
    log_set_level(LOG_LEVEL_OFF);
    fuzz_file("config.json", (const uint8_t *)config, sizeof config - 1);
    fuzz_file("model.safetensors", data, size);
    struct err e = {0};
    struct model_file *f = model_file_open(fuzz_file(NULL, NULL, 0), &e);
    if (!f) {
        fuzz_check(e.code != ERR_NONE && e.msg[0], "a refused file has a reason");
        return 0;
    }
    unsigned sum = 0;
    for (int i = 0; i < f->n_tensors; i++) { /* first and last byte: inside the mapping, or this crashes */
        const struct tensor *t = &f->tensors[i];
        if (t->bytes)
            sum += ((const uint8_t *)t->data)[0] + ((const uint8_t *)t->data)[t->bytes - 1];
    }
    fuzz_check(sum < UINT32_MAX, "sum");
    model_file_close(f);
    return 0;
}
