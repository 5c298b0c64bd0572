/* What the parts of src/file share: mapped files, and the list in which both formats' parsers collect the
 * tensors they find. Private to the room and its tests.
 *
 * The parsers take bytes, not paths: their errors name keys and tensors, and the caller puts the path before
 * them. They never trust a number of the file: each length is compared with the bytes that are left before it
 * is used, so that memory taken is bounded by a small multiple of the file's size. */
#ifndef SLUICE_FILE_INTERNAL_H
#define SLUICE_FILE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "file/model_file.h"

/* A regular file mapped read-only. (If somebody cuts the file short while it is mapped, reading the lost
 * pages kills the process with SIGBUS: the price of mapping, paid only while weights are being loaded.) */
struct mapping {
    const uint8_t *data; /* [size] */
    size_t size;         /* at least 1 */
    char *path;
};

int mapping_open(struct mapping *m, const char *path, struct err *e); /* 0, or -1 with m untouched */
void mapping_close(struct mapping *m);

struct tensor_list {
    struct tensor *tensors; /* [n] */
    struct unread_tensor *unread;
    int n, cap, n_unread, cap_unread;
};

/* Appends, taking a copy of the name. The list holds at most INT_MAX / 2 entries, far above what its callers'
 * bounds let through. */
void tensor_list_add(struct tensor_list *l, const struct tensor *t);
struct unread_tensor *tensor_list_add_unread(struct tensor_list *l, const char *name, const char *why_fmt,
                                             ...) /* the entry, until the next is added */
    __attribute__((format(printf, 3, 4)));
void tensor_list_free(struct tensor_list *l);

/* Sorts by name; -1 and *e if a name occurs twice. */
int tensor_list_sort(struct tensor_list *l, struct err *e);
const struct tensor *tensor_list_find(const struct tensor_list *l, const char *name); /* sorted */
const struct unread_tensor *tensor_list_find_unread(const struct tensor_list *l,
                                                    const char *name); /* sorted */

/* The bytes of a tensor's data part that something occupies. -1 and *e if two of the n ranges (re-ordered by
 * this) share a byte. Empty ranges share none. */
struct byte_range {
    uint64_t begin, end;
    const char *name;
};
int byte_ranges_check(struct byte_range *r, size_t n, struct err *e);

/* May this be a key or a tensor's name: 1 to 65535 bytes of UTF-8 without control characters? */
bool name_is_valid(const char *name, size_t len);

/* Parses a whole GGUF file. The result and the tensors refer into data [size]. NULL and *e on failure (the
 * list may have grown). */
struct gguf *gguf_parse(const uint8_t *data, size_t size, struct tensor_list *l, struct err *e);
void gguf_free(struct gguf *g);

/* Maps one more file into f->maps; NULL and *e on failure. The pointer is good until the next call. */
const struct mapping *model_file_map(struct model_file *f, const char *path, struct err *e);

/* Fills f from a Hugging Face directory and l with its tensors. -1 and *e on failure. */
int hf_dir_open(struct model_file *f, struct tensor_list *l, struct err *e);

/* In a sorted list, puts one matrix X.weight in the place of the tensors that a quantised checkpoint keeps it
 * in; what cannot be put together becomes an unread tensor, which says why. Fills f->quantised. */
void hf_quantised(struct model_file *f, struct tensor_list *l);

/* As hf_dir_open, from the directory's files but those of weights; l stays empty. */
int hf_dir_open_tokenizer(struct model_file *f, struct tensor_list *l, struct err *e);

/* Parses a whole safetensors file. -1 and *e on failure (the list may have grown). */
int safetensors_parse(const uint8_t *data, size_t size, struct tensor_list *l, struct err *e);

#endif
