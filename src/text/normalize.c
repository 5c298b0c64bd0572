/* Unicode normal forms by utf8proc, with one part of our own: the canonical order of combining marks.
 * utf8proc's decomposition of a whole text sorts them by swapping neighbours, quadratic in the length of a
 * run, and a hostile text can be one run of a megabyte. So characters are decomposed one by one, runs are
 * sorted by counting, and utf8proc composes the result. */
#include "text/normalize.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"

void normalizer_free(struct normalizer *n)
{
    for (int i = 0; i < n->n; i++) {
        str_free(&n->steps[i].from);
        str_free(&n->steps[i].to);
    }
    *n = (struct normalizer){0};
}

struct normalize_step *normalizer_add(struct normalizer *n, enum normalize_kind kind, struct err *e)
{
    if (n->n == NORMALIZER_MAX_STEPS) {
        err_set(e, ERR_UNSUPPORTED, "the normalizer has more than %d steps", NORMALIZER_MAX_STEPS);
        return NULL;
    }
    struct normalize_step *s = &n->steps[n->n++];
    *s = (struct normalize_step){.kind = kind};
    return s;
}

/* Characters below U+0300 are in NFC, and no mark that could join them is below it either. */
static bool is_plain(const char *text, size_t len, bool compose, bool compat)
{
    unsigned char limit = compose && !compat ? 0xCC : 0x80; /* U+0300 is CC 80 */
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] >= limit)
            return false;
    return true;
}

static uint8_t combining_class(int32_t c)
{
    return (uint8_t)utf8proc_get_property(c)->combining_class;
}

/* Stable sort of marks [n] by combining class, into themselves; `scratch` has room for n. */
static void sort_marks(int32_t *marks, size_t n, int32_t *scratch)
{
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[combining_class(marks[i]) + 1]++;
    for (int c = 0; c < 256; c++)
        start[c + 1] += start[c];
    for (size_t i = 0; i < n; i++)
        scratch[start[combining_class(marks[i])]++] = marks[i];
    memcpy(marks, scratch, n * sizeof *marks);
}

static void order_marks(int32_t *chars, size_t n, int32_t *scratch)
{
    for (size_t i = 0; i < n;) {
        size_t end = i;
        bool sorted = true;
        while (end < n && combining_class(chars[end])) {
            sorted &= end == i || combining_class(chars[end - 1]) <= combining_class(chars[end]);
            end++;
        }
        if (!sorted)
            sort_marks(chars + i, end - i, scratch);
        i = end > i ? end : i + 1;
    }
}

static void normalize_unicode(const struct normalize_step *s, const char *text, size_t len, struct str *out)
{
    if (is_plain(text, len, s->compose, s->compat)) {
        str_add(out, text, len);
        return;
    }
    const utf8proc_option_t split = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (s->compat ? UTF8PROC_COMPAT : 0);
    size_t n = 0, cap = len + 32; /* one character decomposes to at most 18 */
    int32_t *chars = mem_realloc(NULL, cap, sizeof *chars);
    for (size_t i = 0; i < len;) {
        unsigned c;
        int size = utf8_decode(text + i, len - i, &c);
        if (!size)
            size = 1, c = 0xFFFD;
        i += (size_t)size;
        if (cap - n < 32) {
            cap *= 2;
            chars = mem_realloc(chars, cap, sizeof *chars);
        }
        utf8proc_ssize_t made =
            utf8proc_decompose_char((int32_t)c, chars + n, (utf8proc_ssize_t)(cap - n), split, NULL);
        if (made > 0 && (size_t)made <= cap - n)
            n += (size_t)made;
        else
            chars[n++] = (int32_t)c;
    }
    int32_t *scratch = mem_realloc(NULL, n, sizeof *scratch);
    order_marks(chars, n, scratch);
    free(scratch);
    if (s->compose) {
        utf8proc_ssize_t composed =
            utf8proc_normalize_utf32(chars, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (composed >= 0)
            n = (size_t)composed;
    }
    for (size_t i = 0; i < n; i++)
        str_add_utf8(out, (unsigned)chars[i]);
    free(chars);
}

void replace_all(const char *text, size_t len, const struct str *from, const struct str *to, struct str *out)
{
    size_t i = 0, done = 0; /* text up to done is in out */
    while (i + from->len <= len) {
        const char *hit = memchr(text + i, from->data[0], len - from->len + 1 - i);
        if (!hit)
            break;
        i = (size_t)(hit - text);
        if (memcmp(hit, from->data, from->len) != 0) {
            i++;
            continue;
        }
        str_add(out, text + done, i - done);
        str_add(out, str_text(to), to->len);
        done = i += from->len;
    }
    str_add(out, text + done, len - done);
}

void normalizer_run(const struct normalizer *n, const char *text, size_t len, bool first, struct str *out)
{
    str_clear(out);
    str_add(out, text, len);
    struct str next = {0};
    for (int i = 0; i < n->n; i++) {
        const struct normalize_step *s = &n->steps[i];
        str_clear(&next);
        switch (s->kind) {
        case NORMALIZE_UNICODE:
            normalize_unicode(s, out->data, out->len, &next);
            break;
        case NORMALIZE_REPLACE:
            replace_all(out->data, out->len, &s->from, &s->to, &next);
            break;
        case NORMALIZE_PREPEND:
            if (first && out->len)
                str_add(&next, str_text(&s->to), s->to.len);
            str_add(&next, out->data, out->len);
            break;
        }
        struct str swap = *out;
        *out = next;
        next = swap;
    }
    str_free(&next);
}
