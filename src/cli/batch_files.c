#include "cli/batch_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/fields.h"
#include "base/mem.h"

/* What every line of ours begins with: a file that begins otherwise is not taken for a torn output. */
static const char output_start[] = "{\"id\":\"batch_req_";

/* Answers with log-probabilities are much longer than what they answer; this only bounds the reading of a
 * file that is none of ours. */
#define MAX_ANSWER_LINE ((size_t)4 << 30)

/* --- reading by lines ----------------------------------------------------------------------------- */

/* Calls `take` for every line of a file (without its line feed), the last one also when it does not end in
 * one. take returns 0 to go on, 1 to stop, -1 with *e. */
struct line_reader {
    const char *path;
    int fd;
    size_t number; /* of the line, from 1 */
    off_t offset;  /* where it begins */
    bool whole;    /* it ends in a line feed */
    size_t max_line;
};

static int read_lines(struct line_reader *r,
                      int (*take)(void *arg, const char *line, size_t len, struct err *e), void *arg,
                      struct err *e)
{
    struct str text = {0}; /* from r->offset on */
    int rc = 0;
    r->number = 1;
    r->offset = 0;
    for (size_t searched = 0;;) {
        const char *end = text.len ? memchr(text.data + searched, '\n', text.len - searched) : NULL;
        size_t line = 0; /* where the next one begins in text */
        while (end) {
            size_t len = (size_t)(end - text.data) - line;
            r->whole = true;
            if ((rc = take(arg, text.data + line, len, e)))
                goto done;
            r->number++;
            r->offset += (off_t)len + 1;
            line += len + 1;
            end = memchr(text.data + line, '\n', text.len - line);
        }
        if (line > 0)
            memmove(text.data, text.data + line, text.len - line);
        text.len -= line;
        searched = text.len;
        if (text.len > r->max_line) {
            rc = err_set(e, ERR_LIMIT, "%s line %zu is longer than a line may be (%zu MiB)", r->path,
                         r->number, r->max_line >> 20);
            goto done;
        }
        str_reserve(&text, (size_t)1 << 20);
        ssize_t n;
        do
            n = pread(r->fd, text.data + text.len, (size_t)1 << 20, r->offset + (off_t)text.len);
        while (n < 0 && errno == EINTR);
        if (n < 0) {
            rc = err_set(e, ERR_IO, "cannot read %s: %m", r->path);
            goto done;
        }
        if (n == 0)
            break;
        text.len += (size_t)n;
    }
    r->whole = false;
    if (text.len > 0)
        rc = take(arg, text.data, text.len, e);
done:
    str_free(&text);
    return rc < 0 ? -1 : 0;
}

/* --- input ---------------------------------------------------------------------------------------- */

static const char *kind_of(const json_t *v)
{
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return v ? "null" : "missing";
}

/* The object of a line, or NULL and *e (without the line's name). */
static json_t *parse(const char *line, size_t len, int max_depth, struct err *e)
{
    struct api_error refusal;
    json_t *object = fields_parse(line, len, max_depth, &refusal);
    if (object)
        return object;
    json_error_t why; /* the refusal speaks of a body */
    json_t *value = json_loadb(line, len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
    if (!value)
        err_set(e, ERR_INVALID, "not valid JSON: %s (offset %d)", why.text, why.position);
    else if (!json_is_object(value))
        err_set(e, ERR_INVALID, "a request must be a JSON object, and this is %s", kind_of(value));
    else
        err_set(e, ERR_INVALID, "the JSON is nested more than %d deep", max_depth);
    json_decref(value);
    return NULL;
}

/* The envelope: {"custom_id": "…", "method": "…", "url": "…", "body": {…}}. What is in it is the request's
 * own affair. */
static int check_envelope(const json_t *object, struct err *e)
{
    static const struct {
        const char *name, *expected;
        json_type type;
    } fields[] = {{"custom_id", "a string", JSON_STRING},
                  {"method", "a string", JSON_STRING},
                  {"url", "a string", JSON_STRING},
                  {"body", "an object", JSON_OBJECT}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *v = json_object_get(object, fields[i].name);
        if (!v || json_typeof(v) != fields[i].type)
            return err_set(e, ERR_INVALID, "%s must be %s, and it is %s", fields[i].name, fields[i].expected,
                           kind_of(v));
    }
    return 0;
}

struct indexing {
    struct batch_input *in;
    struct line_reader reader;
    size_t cap;
    int max_depth;
};

static int index_line(void *arg, const char *line, size_t len, struct err *e)
{
    struct indexing *x = arg;
    struct batch_input *in = x->in;
    size_t blank = 0;
    while (blank < len && strchr(" \t\r", line[blank]) && line[blank])
        blank++;
    if (blank == len)
        return 0;
    json_t *object = parse(line, len, x->max_depth, e);
    if (!object || check_envelope(object, e)) {
        json_decref(object);
        return err_prefix(e, "%s line %zu", in->path, x->reader.number);
    }
    if (in->n == x->cap) {
        x->cap = x->cap ? 2 * x->cap : 1024;
        in->lines = mem_realloc(in->lines, x->cap, sizeof *in->lines);
    }
    const json_t *id = json_object_get(object, "custom_id");
    in->lines[in->n++] = (struct batch_line){.offset = x->reader.offset,
                                             .len = len,
                                             .number = x->reader.number,
                                             .id = in->ids.len,
                                             .id_len = json_string_length(id)};
    str_add(&in->ids, json_string_value(id), json_string_length(id));
    json_decref(object);
    return 0;
}

static int by_id(const void *a, const void *b, void *arg)
{
    const struct batch_input *in = arg;
    const struct batch_line *x = &in->lines[*(const size_t *)a], *y = &in->lines[*(const size_t *)b];
    size_t n = x->id_len < y->id_len ? x->id_len : y->id_len;
    int order = n ? memcmp(in->ids.data + x->id, in->ids.data + y->id, n) : 0;
    if (order)
        return order;
    if (x->id_len != y->id_len)
        return x->id_len < y->id_len ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number; /* names of one kind stay in their order */
}

static int check_unique(const struct batch_input *in, struct err *e)
{
    size_t *order = mem_zalloc(in->n, sizeof *order);
    for (size_t i = 0; i < in->n; i++)
        order[i] = i;
    qsort_r(order, in->n, sizeof *order, by_id, (void *)in);
    int rc = 0;
    for (size_t i = 1; i < in->n && !rc; i++) {
        const struct batch_line *x = &in->lines[order[i - 1]], *y = &in->lines[order[i]];
        if (x->id_len == y->id_len && memcmp(in->ids.data + x->id, in->ids.data + y->id, x->id_len) == 0)
            rc = err_set(e, ERR_INVALID, "%s lines %zu and %zu have the same custom_id \"%.*s\"", in->path,
                         x->number, y->number, (int)(x->id_len < 200 ? x->id_len : 200),
                         str_text(&in->ids) + x->id);
    }
    free(order);
    return rc;
}

int batch_input_open(struct batch_input *in, const char *path, int max_depth, struct err *e)
{
    *in = (struct batch_input){.path = path};
    in->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (in->fd < 0)
        return err_set(e, ERR_IO, "cannot open %s: %m", path);
    struct stat st;
    if (fstat(in->fd, &st) || !S_ISREG(st.st_mode))
        return err_set(e, ERR_INVALID, "%s is not a file, and the input is read twice: put it into one",
                       path);
    struct indexing x = {
        .in = in, .reader = {.path = path, .fd = in->fd, .max_line = BATCH_MAX_LINE}, .max_depth = max_depth};
    if (read_lines(&x.reader, index_line, &x, e))
        return -1;
    if (in->n == 0)
        return err_set(e, ERR_INVALID, "%s holds no request", path);
    return check_unique(in, e);
}

void batch_input_close(struct batch_input *in)
{
    if (in->fd >= 0)
        close(in->fd);
    free(in->lines);
    str_free(&in->ids);
}

json_t *batch_input_read(const struct batch_input *in, size_t i, int max_depth, struct err *e)
{
    const struct batch_line *line = &in->lines[i];
    char *text = mem_alloc(line->len);
    size_t got = 0;
    while (got < line->len) {
        ssize_t n = pread(in->fd, text + got, line->len - got, line->offset + (off_t)got);
        if (n > 0)
            got += (size_t)n;
        else if (n == 0 || errno != EINTR)
            break;
    }
    json_t *object = got == line->len ? parse(text, line->len, max_depth, e) : NULL;
    free(text);
    if (object && check_envelope(object, e) == 0) {
        const json_t *id = json_object_get(object, "custom_id");
        if (json_string_length(id) == line->id_len &&
            memcmp(json_string_value(id), str_text(&in->ids) + line->id, line->id_len) == 0)
            return object;
    }
    json_decref(object);
    err_set(e, ERR_IO, "%s line %zu cannot be read again: the file was changed during the run", in->path,
            line->number);
    return NULL;
}

/* --- output --------------------------------------------------------------------------------------- */

struct resuming {
    struct batch_output *out;
    const struct batch_input *in;
    struct line_reader reader;
};

static int resume_line(void *arg, const char *line, size_t len, struct err *e)
{
    struct resuming *x = arg;
    struct batch_output *out = x->out;
    if (!x->reader.whole) {
        size_t n = len < sizeof output_start - 1 ? len : sizeof output_start - 1;
        if (memcmp(line, output_start, n) != 0)
            return err_set(e, ERR_INVALID,
                           "%s ends in something that is no answer: name another output, or replace it with "
                           "--overwrite",
                           out->path);
        out->excess = true;
        return 0;
    }
    json_error_t why;
    json_t *object = json_loadb(line, len, JSON_ALLOW_NUL, &why);
    const json_t *id = json_object_get(object, "custom_id");
    int rc = -1;
    if (!json_is_string(id)) {
        err_set(
            e, ERR_INVALID,
            "%s line %zu is not an answer of a batch: name another output, or replace it with --overwrite",
            out->path, x->reader.number);
        goto done;
    }
    if (out->n >= x->in->n) {
        err_set(
            e, ERR_INVALID,
            "%s has more lines than %s has requests (%zu): it answers another input; name another output, or "
            "replace it with --overwrite",
            out->path, x->in->path, x->in->n);
        goto done;
    }
    const struct batch_line *request = &x->in->lines[out->n];
    if (json_string_length(id) != request->id_len ||
        memcmp(json_string_value(id), str_text(&x->in->ids) + request->id, request->id_len) != 0) {
        err_set(
            e, ERR_INVALID,
            "%s line %zu answers \"%.100s\", but request %zu of %s is \"%.*s\": it answers another input; "
            "name another output, or replace it with --overwrite",
            out->path, x->reader.number, json_string_value(id), out->n + 1, x->in->path,
            (int)(request->id_len < 100 ? request->id_len : 100), str_text(&x->in->ids) + request->id);
        goto done;
    }
    const json_t *error = json_object_get(object, "error");
    if (error && !json_is_null(error))
        out->failed++;
    out->n++;
    out->size = x->reader.offset + (off_t)len + 1;
    rc = 0;
done:
    json_decref(object);
    return rc;
}

int batch_output_open(struct batch_output *out, const char *path, const struct batch_input *in,
                      bool overwrite, struct err *e)
{
    *out = (struct batch_output){.path = path};
    out->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (out->fd < 0)
        return err_set(e, ERR_IO, "cannot open %s for writing: %m", path);
    struct stat st, st_in;
    if (fstat(out->fd, &st) || !S_ISREG(st.st_mode))
        return err_set(e, ERR_INVALID, "%s is not a file: a run that is cut short could not go on from it",
                       path);
    if (fstat(in->fd, &st_in) == 0 && st.st_dev == st_in.st_dev && st.st_ino == st_in.st_ino)
        return err_set(e, ERR_INVALID, "%s is the input: name another output", path);
    if (flock(out->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return err_set(e, ERR_BUSY, "another run is writing to %s", path);
    if (overwrite) {
        out->excess = st.st_size > 0;
        return 0;
    }
    struct resuming x = {
        .out = out, .in = in, .reader = {.path = path, .fd = out->fd, .max_line = MAX_ANSWER_LINE}};
    return read_lines(&x.reader, resume_line, &x, e);
}

int batch_output_begin(struct batch_output *out, struct err *e)
{
    if (out->excess && ftruncate(out->fd, out->size))
        return err_set(e, ERR_IO, "cannot shorten %s: %m", out->path);
    out->excess = false;
    return 0;
}

int batch_output_add(struct batch_output *out, const char *text, size_t len, struct err *e)
{
    while (len > 0) {
        ssize_t n = write(out->fd, text, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(e, ERR_IO, "cannot write to %s: %m", out->path);
        text += n;
        len -= (size_t)n;
    }
    return 0;
}

int batch_output_close(struct batch_output *out, struct err *e)
{
    if (out->fd < 0)
        return 0;
    int rc = fsync(out->fd) && errno != EINVAL /* no file, which was refused */
                 ? err_set(e, ERR_IO, "cannot write %s to its disk: %m", out->path)
                 : 0;
    close(out->fd);
    out->fd = -1;
    return rc;
}
