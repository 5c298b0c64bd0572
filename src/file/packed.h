/* A weight matrix that a quantised checkpoint keeps in several tensors: codes, scales and zero points, in the
 * layouts of compressed-tensors, GPTQ, AWQ and FP8. Weight (r, c) is (code - zero) * scale, where scale and
 * zero are those of the group that (r, c) is in. To its users it is one matrix of a type that they know
 * (struct tensor's dtype), whose bytes do not exist until they are made: packed_tiles.
 *
 * The type is one that keeps the weights exactly, if there is one: codes of 4 bits around 8 are Q4_0; around
 * other zeros they are whole numbers of -16 … 15, Q5_0; codes of 8 bits around 128 are Q8_0. These have
 * fp16 scales; where a scale is not within 2^-11 of one, the weights become F32. Groups that are not runs of
 * columns (act-order), and codes of 8 bits around other zeros, become F16. FP8 codes become BF16 where that
 * is exact, as with scales that are powers of two, else F16. */
#ifndef SLUICE_FILE_PACKED_H
#define SLUICE_FILE_PACKED_H

#include "file/model_file.h"

enum packed_layout {
    PACKED_ALONG_ROWS, /* I32 [rows, cols / n]: n codes of a row in a word, the first in the lowest bits */
    PACKED_GPTQ,       /* I32 [cols / n, rows]: n codes of a row in a word; zeros I32 [groups, rows / n] */
    PACKED_AWQ,        /* I32 [cols, rows / 8]: codes of rows 0 2 4 6 1 3 5 7 in a word; zeros likewise */
    PACKED_BYTES,      /* I8 [rows, cols]: code - 128 */
    PACKED_FP8,        /* F8_E4M3 [rows, cols]; no zeros */
};

struct packed {
    enum packed_layout layout;
    int bits; /* of a code: 4 or 8 */
    int64_t rows, cols;
    int64_t group_rows, group_cols, n_groups; /* what shares a scale; groups beside each other */
    bool scales_by_group; /* scales [n_groups, rows], else [ceil(rows / group_rows), n_groups] */
    int zero_plus;        /* what zeros lack: 1 in GPTQ's first form */
    struct tensor codes, scales, zeros, g_idx; /* mapped; without data where the checkpoint has none.
                                                  g_idx: I32 [cols], the group of each column */
    bool rounded;                              /* the type does not hold all weights exactly */
};

/* Checks scales and groups of p, whose shapes are right, and chooses the type. -1 and *e if a scale is not
 * finite or a group is out of range. */
int packed_choose(struct packed *p, enum dtype *type, struct err *e);

/* Making the bytes, in parallel. */
struct packed_job {
    const struct packed *p;
    enum dtype to;
    uint8_t *out;     /* [rows, cols] in blocks of `to` */
    uint8_t *scratch; /* [threads, packed_scratch_bytes] */
    _Atomic bool bad; /* a weight is NaN or infinite */
};
enum { PACKED_TILE_ROWS = 64 };
static inline int64_t packed_tile_count(int64_t rows)
{
    return (rows + PACKED_TILE_ROWS - 1) / PACKED_TILE_ROWS;
}
size_t packed_scratch_bytes(const struct packed *p);
/* A pool_fn: makes tiles begin … end-1 of `job`, a struct packed_job. */
void packed_tiles(void *job, int64_t begin, int64_t end, int thread);

#endif
