/* The two files of a batch: requests in, answers out, one JSON object a line.
 *
 * The input is read twice. First every line is checked and its place and custom_id are noted, so that a
 * malformed line is found before hours of work; later each line is read again when its turn comes, so that
 * memory holds only the requests in flight.
 *
 * The output is its own journal. Its lines come in the input's order, each is written whole, and nothing else
 * is kept: what is there when a run starts is what an earlier one got done. A last line without an end is
 * what a kill left behind; it is cut off and made again. */
#ifndef SLUICE_CLI_BATCH_FILES_H
#define SLUICE_CLI_BATCH_FILES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/str.h"

#define BATCH_MAX_LINE ((size_t)64 << 20) /* bytes; twice what the server takes as a body */

struct batch_line {
    off_t offset;
    size_t len;        /* without the line feed */
    size_t number;     /* in the file, from 1 */
    size_t id, id_len; /* its custom_id, in ids */
};

struct batch_input {
    const char *path;
    int fd;
    struct batch_line *lines; /* [n], blank ones left out */
    size_t n;
    struct str ids; /* all custom_ids, one after another */
};

/* Opens and checks a whole input. -1 and *e, which names the line, when one is no request or repeats a
 * custom_id; batch_input_close frees in either case. */
int batch_input_open(struct batch_input *in, const char *path, int max_depth, struct err *e);
void batch_input_close(struct batch_input *in);
/* Reads line i again: its JSON object, or NULL and *e when the file was changed meanwhile. From any thread.
 */
json_t *batch_input_read(const struct batch_input *in, size_t i, int max_depth, struct err *e);

struct batch_output {
    const char *path;
    int fd;
    off_t size;    /* of the whole lines */
    size_t n;      /* whole lines */
    size_t failed; /* of these, answers that are errors */
    bool excess;   /* there is more behind them, which batch_output_begin cuts off */
};

/* Opens or makes the output, for this process alone, and checks that what it holds are the answers to the
 * first lines of `in` (with `overwrite`: takes it as empty). The file is left as it is until
 * batch_output_begin. */
int batch_output_open(struct batch_output *out, const char *path, const struct batch_input *in,
                      bool overwrite, struct err *e);
int batch_output_begin(struct batch_output *out, struct err *e);
/* Appends whole lines. */
int batch_output_add(struct batch_output *out, const char *text, size_t len, struct err *e);
/* Closes; -1 when the system could not keep what was written. */
int batch_output_close(struct batch_output *out, struct err *e);

#endif
