/* Writing GGUF, version 3. A file is declared first: its metadata, then its tensors, in the order in which
 * they shall stand. gguf_writer_begin writes that head and reserves disk space for the whole; then the
 * tensors' bytes come, in pieces of any size, in any order and from any thread. Until gguf_writer_finish
 * everything is in PATH.partial-PID, so that no half-written file ever carries the name.
 *
 *   struct gguf_writer *w = gguf_writer_open("m.gguf", e);
 *   gguf_writer_str(w, "general.architecture", "llama");
 *   int t = gguf_writer_tensor(w, "token_embd.weight", DT_F16, 2, (const int64_t[]){vocab, hidden});
 *   if (gguf_writer_begin(w, e) || gguf_writer_data(w, t, 0, weights, bytes, e) || gguf_writer_finish(w, e))
 *       …
 *   gguf_writer_close(w);
 *
 * Declarations do not fail by themselves: a key that is no key, one that is given twice, or rows that do not
 * divide into a type's blocks are reported by gguf_writer_begin. */
#ifndef SLUICE_FILE_GGUF_WRITE_H
#define SLUICE_FILE_GGUF_WRITE_H

#include "file/gguf.h"

struct gguf_writer;

struct gguf_text {
    const char *s; /* need not be NUL-terminated, and may hold NULs */
    size_t len;
};

/* NULL and *e if the path is a directory, or the file cannot be created beside it. */
struct gguf_writer *gguf_writer_open(const char *path, struct err *e);
/* Frees w (may be NULL), and removes what was written unless it was finished. */
void gguf_writer_close(struct gguf_writer *w);

/* --- metadata, until gguf_writer_begin; everything is copied --- */

/* `value` is one number of the type (not GGUF_STR or GGUF_ARR), `values` [n] of them, in memory's form. */
void gguf_writer_number(struct gguf_writer *w, const char *key, enum gguf_type type, const void *value);
void gguf_writer_numbers(struct gguf_writer *w, const char *key, enum gguf_type type, const void *values,
                         uint64_t n);
void gguf_writer_text(struct gguf_writer *w, const char *key, struct gguf_text text);
void gguf_writer_texts(struct gguf_writer *w, const char *key, const struct gguf_text *texts, uint64_t n);
/* The pair number i of a file that was read, as it stands there; general.alignment is passed over, as the
 * alignment of this file is the writer's own. */
void gguf_writer_copy(struct gguf_writer *w, const struct gguf *g, int64_t i);

void gguf_writer_str(struct gguf_writer *w, const char *key, const char *s);
void gguf_writer_u32(struct gguf_writer *w, const char *key, uint32_t v);
void gguf_writer_f32(struct gguf_writer *w, const char *key, float v);
void gguf_writer_bool(struct gguf_writer *w, const char *key, bool v);

/* --- tensors --- */

/* Declares the next tensor, shape [n_dims] outermost first; returns its number, 0, 1, 2 … */
int gguf_writer_tensor(struct gguf_writer *w, const char *name, enum dtype dtype, int n_dims,
                       const int64_t *shape);
/* Bytes of a declared tensor, and of all of them. */
size_t gguf_writer_tensor_bytes(const struct gguf_writer *w, int tensor);
uint64_t gguf_writer_data_bytes(const struct gguf_writer *w);

/* Checks what was declared, reserves the disk space, writes the head. -1 and *e on failure. */
int gguf_writer_begin(struct gguf_writer *w, struct err *e);
/* Writes bytes offset … offset+n-1 of a tensor. May be called from several threads at once. */
int gguf_writer_data(struct gguf_writer *w, int tensor, size_t offset, const void *bytes, size_t n,
                     struct err *e);
/* Checks that each tensor got as many bytes as it has, makes sure that they are on the disk, and gives the
 * file its name; a file of that name is replaced. */
int gguf_writer_finish(struct gguf_writer *w, struct err *e);

#endif
