/* One file of the offload directory: the keys and values of one block of tokens, or the recurrent state after
 * it, for one exact beginning of a text.
 *
 * A reader knows beforehand what must be in the file: which model and engine, which salt, which tokens, how
 * many bytes. So nothing in a file is believed, no length in it is followed: it is compared with what it must
 * be, and then its checksum decides. Whatever differs is a miss.
 *
 *   header   12 words of 64 bits, little-endian: magic, version and kind, model (2), key (2), salt (2),
 *            number of tokens, bytes of data, checksum (2)
 *   tokens   all tokens from the text's first to the block's last, 32 bits each
 *   data
 *
 * The checksum is over everything else. Files appear under their names whole (written aside, then renamed)
 * and are private to the user (0600): they hold the tokens of prompts. They are not forced to the disk: after
 * a power failure a file may be cut, which the checksum notices. Private to src/sched. */
#ifndef SLUICE_SCHED_OFFLOAD_FILE_H
#define SLUICE_SCHED_OFFLOAD_FILE_H

#include <stddef.h>
#include <stdint.h>

enum offload_kind { OFFLOAD_KV, OFFLOAD_STATE, OFFLOAD_KINDS };

struct offload_file {
    enum offload_kind kind;
    uint64_t model[2]; /* model, types and engine: bits of another are not ours */
    uint64_t key[2];   /* hash of salt and tokens: the file's name */
    uint64_t salt[2];
    const int32_t *tokens; /* [n_tokens] */
    size_t n_tokens;
    size_t bytes; /* of data */
};

enum offload_result {
    OFFLOAD_OK,
    OFFLOAD_ABSENT,  /* no such file */
    OFFLOAD_FOREIGN, /* of another model, engine or version of the format */
    OFFLOAD_OTHER,   /* whole, but of other tokens or another salt with the same hash */
    OFFLOAD_DAMAGED,
    OFFLOAD_FAILED, /* the system could not read it */
    OFFLOAD_RESULTS
};

#define OFFLOAD_NAME 40 /* bytes of a file's name */
void offload_file_name(enum offload_kind kind, const uint64_t key[2], char name[OFFLOAD_NAME]);
/* The reverse, for listing a directory. -1 if it is no such name. */
int offload_file_parse_name(const char *name, enum offload_kind *kind, uint64_t key[2]);

size_t offload_file_size(const struct offload_file *f);

/* Writes `f` with data [f->bytes] into the directory `dir`. 0, or the errno of what failed; a file that was
 * begun is removed. One writer a directory. */
int offload_file_write(int dir, const struct offload_file *f, const void *data);

/* Fills data [want->bytes] from the file that `want` describes. Anything but OFFLOAD_OK leaves it undefined.
 */
enum offload_result offload_file_read(int dir, const struct offload_file *want, void *data);

#endif
