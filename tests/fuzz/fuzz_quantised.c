/* A quantised directory whose model.safetensors is the input, with a config of each method: opened, and every
 * matrix made. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "file/packed.h"

#define CT(format, weights)                                                             \
    "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": " \
    "\"" format "\", \"config_groups\": {\"g\": {\"weights\": {" weights "}}}}}"

static const char *const configs[] = {
    "{\"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 32}}",
    "{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32}}",
    "{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 8, \"group_size\": -1}}",
    "{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}}",
    "{\"quantization_config\": {\"quant_method\": \"fp8\"}}",
    CT("pack-quantized",
       "\"num_bits\": 4, \"symmetric\": false, \"strategy\": \"group\", \"group_size\": 32"),
    CT("pack-quantized",
       "\"num_bits\": 4, \"symmetric\": true, \"strategy\": \"group\", \"group_size\": 128"),
    CT("int-quantized", "\"num_bits\": 8, \"symmetric\": true, \"strategy\": \"channel\""),
    CT("float-quantized", "\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"channel\""),
};

static void make(const struct tensor *t)
{
    struct packed_job j = {.p = t->packed, .to = t->dtype, .out = malloc(t->bytes)};
    j.scratch = malloc(packed_scratch_bytes(t->packed));
    fuzz_check(j.out && j.scratch, "a matrix is a small multiple of the file");
    packed_tiles(&j, 0, packed_tile_count(t->shape[0]), 0);
    free(j.out);
    free(j.scratch);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    log_set_level(LOG_LEVEL_OFF);
    fuzz_file("model.safetensors", data, size);
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        fuzz_file("config.json", (const uint8_t *)configs[i], strlen(configs[i]));
        struct err e = {0};
        struct model_file *f = model_file_open(fuzz_file(NULL, NULL, 0), &e);
        if (!f) {
            fuzz_check(e.code != ERR_NONE && e.msg[0], "a refused file has a reason");
            continue;
        }
        fuzz_check(!f->quantised.refusal, "these configs are read");
        for (int k = 0; k < f->n_tensors; k++)
            if (f->tensors[k].packed)
                make(&f->tensors[k]);
        model_file_close(f);
    }
    return 0;
}
