/* A model on disk, opened but not loaded: a GGUF file or a Hugging Face directory (config.json,
 * model.safetensors or its shards, tokenizer.json …), mapped read-only. Everything in it is checked
 * before anyone sees it: offsets, lengths, counts, types, UTF-8 of keys. No value read from a file is
 * trusted to be in range by virtue of having been written by a converter. */
#ifndef SLUICE_FILE_MODEL_FILE_H
#define SLUICE_FILE_MODEL_FILE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "quant/dtype.h"

#define TENSOR_MAX_DIMS 4

struct tensor {
    const char *name;               /* owned by the model_file */
    enum dtype dtype;               /* a known type; it may be one that dtype_to_float cannot decode */
    int n_dims;                     /* 0 (scalar) … TENSOR_MAX_DIMS */
    int64_t shape[TENSOR_MAX_DIMS]; /* outermost first, as in PyTorch: a matrix is [rows out, columns in].
                                       Unused entries are 1; every entry is at least 1. */
    const void *data;               /* mapped bytes; not necessarily aligned. NULL if packed is not */
    size_t bytes;
    struct packed
        *packed; /* NULL; or the codes and scales of which the bytes are to be made: file/packed.h */
};

/* A tensor that is in the file, and in bounds, but has no place in `struct tensor`: an element type that
 * sluice does not read (fp8 …), more than TENSOR_MAX_DIMS dimensions, or no elements. Only an error for a
 * model that needs it. (GGUF files have none: there, such a tensor fails the opening.) */
struct unread_tensor {
    char *name, *why;    /* why: "has the element type F8_E4M3, which …" */
    bool is_fp8;         /* F8_E4M3, 1 to TENSOR_MAX_DIMS dimensions: */
    struct tensor bytes; /* … its bytes, as DT_I8 */
};

/* What a Hugging Face directory's quantization_config says. */
struct quantised {
    char *format;          /* "gptq, 4 bits, groups of 128"; NULL: it says nothing */
    char *refusal;         /* why it is not read: "quantization_config: …"; NULL if it is */
    int n_mats, n_rounded; /* matrices put together of codes and scales; those of them whose type does not
                              hold all weights exactly (file/packed.h) */
};

enum model_file_kind { MODEL_FILE_GGUF, MODEL_FILE_HF };

struct gguf; /* GGUF metadata: see file/gguf.h */

struct model_file {
    enum model_file_kind kind;
    char *path;             /* as given */
    struct tensor *tensors; /* [n_tensors], sorted by name, names unique */
    int n_tensors;
    struct unread_tensor *unread; /* [n_unread], sorted by name, none of them in tensors */
    int n_unread;
    struct gguf *gguf; /* GGUF only */
    /* HF only; NULL where the directory has no such file */
    json_t *config; /* config.json (present in a model_file_open of this kind) */
    json_t *generation_config;
    json_t *tokenizer;        /* tokenizer.json */
    json_t *tokenizer_config; /* tokenizer_config.json; where it holds an integer past 64 bits (a customary
                                 model_max_length) all its numbers are JSON reals */
    char *chat_template;      /* chat_template.jinja, else tokenizer_config's chat_template (a named list: its
                                 "default"), else GGUF's tokenizer.chat_template; NULL if none */
    struct quantised quantised; /* HF only */
    struct mapping *maps;       /* the mapped files, private to src/file */
    int n_maps;
};

/* Opens `path`: a .gguf file (recognised by its magic), or a directory. Split GGUFs (…-00001-of-0000N.gguf)
 * open all their parts. NULL and *e (file, tensor or key named) on failure. Reads headers only, and the
 * scales of quantised directories: what type their matrices become depends on them. */
struct model_file *model_file_open(const char *path, struct err *e);
void model_file_close(struct model_file *f); /* f may be NULL */

/* Opens a lone .safetensors file: kind HF, but without config and the other JSON files. */
struct model_file *model_file_open_safetensors(const char *path, struct err *e);

/* Opens a tokenizer without its model: a directory, or a tokenizer.json in it, of which the JSON files and
 * the chat template are read. Kind HF, without tensors; config may be NULL, tokenizer is not. */
struct model_file *model_file_open_tokenizer(const char *path, struct err *e);

/* NULL if there is none of that name. O(log n). */
const struct tensor *model_file_tensor(const struct model_file *f, const char *name);

/* For the error about a tensor that model_file_tensor did not find, to come after its name: "is not in the
 * file", or why an unread one is not read. */
const char *model_file_why_missing(const struct model_file *f, const char *name);

/* A hash of everything in the files (base/hash.h): reads them whole. */
void model_file_digest(const struct model_file *f, uint64_t out[2]);

/* Tells the system that the tensor's pages were copied out and need not stay resident. */
void model_file_drop(const struct model_file *f, const struct tensor *t);

#endif
