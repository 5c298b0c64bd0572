/* A tokenizer as GGUF metadata (tokenizer.*): converted from a tokenizer.json, or made up for a model that
 * has none. */
#ifndef SLUICE_TEXT_WRITE_GGUF_H
#define SLUICE_TEXT_WRITE_GGUF_H

#include "file/gguf_write.h"

/* Writes the tokenizer and chat template of f, of kind HF, for a model whose embedding has `rows` rows. Ids
 * past the tokenizer's become unused tokens. -1 and *e if the tokenizer is not a byte-level BPE whose way of
 * cutting texts has a name in GGUF, or has more tokens than rows. */
int tokenizer_write_gguf(const struct model_file *f, int rows, struct gguf_writer *w, struct err *e);

/* A vocabulary of the 256 bytes and the control tokens of ChatML, with a chat template; the other ids are
 * called <|unused_N|>. Any text can be encoded, and chats can be served. `pre` names the cut, which has
 * nothing to cut. */
void tokenizer_write_bytes(const char *pre, int rows, struct gguf_writer *w);
enum { TOKENIZER_BYTES_LEAST_ROWS = 259 };

#endif
