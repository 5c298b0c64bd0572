/* A Hugging Face directory as a GGUF file, its matrices as they are. */
#ifndef SLUICE_CLI_HF_GGUF_H
#define SLUICE_CLI_HF_GGUF_H

#include "file/model_file.h"

/* Writes `path`. For the Llama family (Llama, Qwen2, Qwen3) without scaled rope; -1 and *e for others, and
 * for a tokenizer that GGUF has no name for. */
int hf_write_gguf(const struct model_file *f, const char *path, struct err *e);

#endif
