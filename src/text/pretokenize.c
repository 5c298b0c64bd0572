/* Pre-tokenizers are data: patterns of a tokenizer.json, or of the table for GGUF's names, compiled by PCRE2.
 *
 * Law 6 here: the text is whatever a client sends, so a match has a bounded stack, heap and number of steps,
 * and the text was checked to be UTF-8 once, not by every match (which would be quadratic). */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenize.h"

#include <pcre2.h>
#include <stdint.h>
#include <string.h>

#define PATTERN_MAX_BYTES 16384
#define JIT_STACK_BYTES   (1 << 20)
#define HEAP_LIMIT_KB     (64 << 10)

void pretokenizer_free(struct pretokenizer *p)
{
    for (int i = 0; i < p->n; i++)
        pcre2_code_free(p->steps[i].code);
    *p = (struct pretokenizer){0};
}

void pretokenizer_work_free(struct pretokenizer_work *w)
{
    for (int i = 0; i < PRETOKENIZER_MAX_STEPS; i++) {
        pcre2_match_data_free(w->data[i]);
        str_free(&w->prefixed[i]);
    }
    pcre2_jit_stack_free(w->stack);
    pcre2_match_context_free(w->context);
    *w = (struct pretokenizer_work){0};
}

/* Oniguruma's dialect in PCRE2's words. \s is Unicode's White_Space, which PCRE2's is but for one character
 * (U+180E). Sets within sets and set intersections, which PCRE2 would read as something else, are refused. */
static int translate(const char *pattern, size_t len, struct str *out, struct err *e)
{
    static const char space[] =
        "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
    bool in_class = false;
    for (size_t i = 0; i < len; i++) {
        char c = pattern[i];
        if (c == '\\' && i + 1 < len) {
            char escaped = pattern[++i];
            if (escaped == 's' && in_class)
                str_adds(out, space);
            else if ((escaped == 's' || escaped == 'S') && !in_class)
                str_addf(out, "[%s%s]", escaped == 'S' ? "^" : "", space);
            else
                str_add(out, pattern + i - 1, 2);
            continue;
        }
        bool posix_class = in_class && c == '[' && i + 1 < len && pattern[i + 1] == ':';
        if (posix_class) {
            const char *close = memmem(pattern + i, len - i, ":]", 2);
            size_t end = close ? (size_t)(close - pattern) + 2 : len;
            str_add(out, pattern + i, end - i);
            i = end - 1;
            continue;
        }
        if (in_class && (c == '[' || (c == '&' && i + 1 < len && pattern[i + 1] == '&')))
            return err_set(e, ERR_UNSUPPORTED,
                           "pattern \"%.*s\": sets within sets (at offset %zu) are not supported",
                           (int)(len < 200 ? len : 200), pattern, i);
        str_addc(out, c);
        if (c == '[') {
            in_class = true;
            if (i + 1 < len && pattern[i + 1] == '^')
                str_addc(out, pattern[++i]);
            if (i + 1 < len && pattern[i + 1] == ']') /* a ']' that comes first stands for itself */
                str_addc(out, pattern[++i]);
        } else if (c == ']') {
            in_class = false;
        }
    }
    return 0;
}

static pcre2_code *compile(const char *pattern, size_t len, bool is_regex, struct err *e)
{
    if (len == 0 || len > PATTERN_MAX_BYTES) {
        err_set(e, ERR_UNSUPPORTED, "a pattern of %zu bytes; 1 … %d are possible", len, PATTERN_MAX_BYTES);
        return NULL;
    }
    struct str translated = {0};
    if (is_regex ? translate(pattern, len, &translated, e) : (str_add(&translated, pattern, len), 0)) {
        str_free(&translated);
        return NULL;
    }
    int code = 0;
    PCRE2_SIZE at = 0;
    uint32_t options =
        PCRE2_UTF | (is_regex ? PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C : PCRE2_LITERAL);
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)translated.data, translated.len, options, &code, &at, NULL);
    str_free(&translated);
    if (!c) {
        char why[200];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        err_set(e, ERR_UNSUPPORTED, "pattern \"%.*s\": %s", (int)(len < 200 ? len : 200), pattern, why);
        return NULL;
    }
    /* Without a JIT for this machine, matching is slower and the same. */
    pcre2_jit_compile(c, PCRE2_JIT_COMPLETE);
    return c;
}

struct split_step *pretokenizer_add(struct pretokenizer *p, const char *pattern, size_t len, bool is_regex,
                                    enum split_behavior behavior, struct err *e)
{
    if (p->n == PRETOKENIZER_MAX_STEPS) {
        err_set(e, ERR_UNSUPPORTED, "the pre-tokenizer has more than %d steps", PRETOKENIZER_MAX_STEPS);
        return NULL;
    }
    pcre2_code *code = NULL;
    if (pattern && !(code = compile(pattern, len, is_regex, e)))
        return NULL;
    struct split_step *s = &p->steps[p->n++];
    *s = (struct split_step){.code = code, .behavior = behavior};
    return s;
}

/* --- one step ------------------------------------------------------------------------------------ */

/* The pieces of a step in the making: the last one waits, because the next may be joined to it. */
struct cutter {
    const struct pretokenizer *p;
    struct pretokenizer_work *w;
    int step;
    const char *text;
    size_t start, end; /* the waiting piece, empty = none */
    bool is_match;
    piece_fn *fn;
    void *arg;
};

static int split_from(const struct pretokenizer *p, struct pretokenizer_work *w, int step, const char *text,
                      size_t len, piece_fn *fn, void *arg);

static int flush(struct cutter *c)
{
    size_t start = c->start, end = c->end;
    c->start = c->end;
    if (start == end)
        return 0;
    return split_from(c->p, c->w, c->step + 1, c->text + start, end - start, c->fn, c->arg);
}

/* The next stretch of the text, a match or what is between two. */
static int add_stretch(struct cutter *c, size_t start, size_t end, bool is_match)
{
    if (start == end)
        return 0;
    const struct split_step *s = &c->p->steps[c->step];
    is_match ^= s->invert;
    bool waiting = c->start != c->end, join = false;
    switch (s->behavior) {
    case SPLIT_ISOLATED:
        break;
    case SPLIT_REMOVED:
        if (is_match)
            return flush(c);
        break;
    case SPLIT_MERGED_WITH_PREVIOUS:
        join = is_match && !c->is_match;
        break;
    case SPLIT_MERGED_WITH_NEXT:
        join = !is_match && c->is_match;
        break;
    case SPLIT_CONTIGUOUS:
        join = is_match == c->is_match;
        break;
    }
    int status = 0;
    if (waiting && join) {
        c->end = end;
    } else {
        status = flush(c);
        c->start = start;
        c->end = end;
    }
    c->is_match = is_match;
    return status;
}

static int cut(struct cutter *c, size_t len)
{
    const struct split_step *s = &c->p->steps[c->step];
    pcre2_match_data *data = c->w->data[c->step];
    size_t done = 0,
           from = 0; /* stretches up to `done` are given out; the next match is looked for at `from` */
    int status = 0;
    while (from < len && status == 0) {
        int found =
            pcre2_match(s->code, (PCRE2_SPTR)c->text, len, from, PCRE2_NO_UTF_CHECK, data, c->w->context);
        if (found < 0)
            break; /* no more matches, or a limit was passed */
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(data);
        if (range[0] < done || range[1] < range[0])
            break; /* \K in a lookaround */
        if (range[0] == range[1]) {
            from = range[1] + 1;
            while (from < len && ((unsigned char)c->text[from] & 0xC0) == 0x80)
                from++;
            continue;
        }
        if ((status = add_stretch(c, done, range[0], false)) == 0)
            status = add_stretch(c, range[0], range[1], true);
        done = from = range[1];
    }
    if (status == 0)
        status = add_stretch(c, done, len, false);
    return status ? status : flush(c);
}

static int split_from(const struct pretokenizer *p, struct pretokenizer_work *w, int step, const char *text,
                      size_t len, piece_fn *fn, void *arg)
{
    if (step == p->n)
        return fn(arg, text, len);
    const struct split_step *s = &p->steps[step];
    if (s->prefix_space && text[0] != ' ') {
        struct str *prefixed = &w->prefixed[step];
        str_clear(prefixed);
        str_addc(prefixed, ' ');
        str_add(prefixed, text, len);
        text = prefixed->data;
        len = prefixed->len;
    }
    if (!s->code)
        return split_from(p, w, step + 1, text, len, fn, arg);
    struct cutter c = {.p = p, .w = w, .step = step, .text = text, .fn = fn, .arg = arg};
    return cut(&c, len);
}

int pretokenizer_split(const struct pretokenizer *p, struct pretokenizer_work *w, const char *text,
                       size_t len, piece_fn *fn, void *arg)
{
    if (len == 0)
        return 0;
    if (!w->context) {
        w->context = pcre2_match_context_create(NULL);
        w->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_BYTES, NULL);
        pcre2_jit_stack_assign(w->context, NULL, w->stack);
        pcre2_set_heap_limit(w->context, HEAP_LIMIT_KB);
    }
    /* Backtracking over a run of white space takes a step a character; nothing that models ship takes more.
     */
    pcre2_set_match_limit(w->context, 1000000 + (len < 100000000 ? (uint32_t)len * 4 : 400000000));
    for (int i = 0; i < p->n; i++)
        if (p->steps[i].code && !w->data[i])
            w->data[i] = pcre2_match_data_create(1, NULL);
    return split_from(p, w, 0, text, len, fn, arg);
}
