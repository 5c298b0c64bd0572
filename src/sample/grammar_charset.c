/* Sets of Unicode characters as lists of ranges: what a character class of a regular expression or a grammar
 * denotes. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/mem.h"
#include "sample/grammar_internal.h"

void charset_free(struct charset *s)
{
    free(s->r);
    *s = (struct charset){0};
}

void charset_add(struct charset *s, uint32_t lo, uint32_t hi)
{
    if (lo > hi)
        return;
    GROW(s->r, s->n, s->cap, 1);
    s->r[s->n++] = (struct char_range){lo, hi};
}

void charset_add_ranges(struct charset *s, const struct char_range *r, int n)
{
    for (int i = 0; i < n; i++)
        charset_add(s, r[i].lo, r[i].hi);
}

static int by_lo(const void *a, const void *b)
{
    const struct char_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

void charset_normalise(struct charset *s)
{
    if (s->n == 0)
        return;
    qsort(s->r, (size_t)s->n, sizeof *s->r, by_lo);
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        struct char_range r = s->r[i];
        if (n && r.lo <= s->r[n - 1].hi + 1)
            s->r[n - 1].hi = r.hi > s->r[n - 1].hi ? r.hi : s->r[n - 1].hi;
        else
            s->r[n++] = r;
    }
    s->n = n;
    /* Merged ranges are apart from each other, so at most one holds both sides of the surrogates. */
    for (int i = 0; i < s->n; i++) {
        struct char_range *r = &s->r[i];
        if (r->lo < 0xD800 && r->hi > 0xDFFF) {
            uint32_t hi = r->hi;
            r->hi = 0xD7FF;
            charset_add(s, 0xE000, hi);
            qsort(s->r, (size_t)s->n, sizeof *s->r, by_lo);
            break;
        }
    }
    n = 0;
    for (int i = 0; i < s->n; i++) {
        struct char_range r = s->r[i];
        if (r.lo >= 0xD800 && r.lo <= 0xDFFF)
            r.lo = 0xE000;
        if (r.hi >= 0xD800 && r.hi <= 0xDFFF)
            r.hi = 0xD7FF;
        if (r.hi > 0x10FFFF)
            r.hi = 0x10FFFF;
        if (r.lo <= r.hi)
            s->r[n++] = r;
    }
    s->n = n;
}

void charset_negate(struct charset *s)
{
    charset_normalise(s);
    struct charset out = {0};
    uint32_t next = 0;
    for (int i = 0; i < s->n; i++) {
        if (s->r[i].lo > next)
            charset_add(&out, next, s->r[i].lo - 1);
        next = s->r[i].hi + 1;
    }
    charset_add(&out, next, 0x10FFFF);
    charset_free(s);
    *s = out;
    charset_normalise(s);
}

void charset_intersect(struct charset *out, const struct char_range *a, int na, const struct char_range *b,
                       int nb)
{
    for (int i = 0, j = 0; i < na && j < nb;) {
        uint32_t lo = a[i].lo > b[j].lo ? a[i].lo : b[j].lo, hi = a[i].hi < b[j].hi ? a[i].hi : b[j].hi;
        charset_add(out, lo, hi);
        if (a[i].hi < b[j].hi)
            i++;
        else
            j++;
    }
}

bool charset_has(const struct char_range *r, int n, uint32_t c)
{
    for (int i = 0; i < n; i++)
        if (c >= r[i].lo && c <= r[i].hi)
            return true;
    return false;
}

/* --- Unicode categories -------------------------------------------------------------------------- */

/* Runs of characters of one category, made once: a scan of all characters takes some milliseconds. */
static struct {
    struct category_run {
        uint32_t lo, hi;
        uint8_t category;
    } * runs;
    int n, cap;
    pthread_once_t once;
} unicode = {.once = PTHREAD_ONCE_INIT};

static void scan_categories(void)
{
    for (utf8proc_int32_t c = 0; c <= 0x10FFFF; c++) {
        uint8_t category = (uint8_t)utf8proc_category(c);
        if (unicode.n && unicode.runs[unicode.n - 1].category == category) {
            unicode.runs[unicode.n - 1].hi = (uint32_t)c;
            continue;
        }
        GROW(unicode.runs, unicode.n, unicode.cap, 1);
        unicode.runs[unicode.n++] = (struct category_run){(uint32_t)c, (uint32_t)c, category};
    }
}

bool charset_add_category(struct charset *s, const char *name, size_t len)
{
    static const struct {
        char name[3];
        uint8_t category;
    } table[] = {
        {"Cn", UTF8PROC_CATEGORY_CN}, {"Lu", UTF8PROC_CATEGORY_LU}, {"Ll", UTF8PROC_CATEGORY_LL},
        {"Lt", UTF8PROC_CATEGORY_LT}, {"Lm", UTF8PROC_CATEGORY_LM}, {"Lo", UTF8PROC_CATEGORY_LO},
        {"Mn", UTF8PROC_CATEGORY_MN}, {"Mc", UTF8PROC_CATEGORY_MC}, {"Me", UTF8PROC_CATEGORY_ME},
        {"Nd", UTF8PROC_CATEGORY_ND}, {"Nl", UTF8PROC_CATEGORY_NL}, {"No", UTF8PROC_CATEGORY_NO},
        {"Pc", UTF8PROC_CATEGORY_PC}, {"Pd", UTF8PROC_CATEGORY_PD}, {"Ps", UTF8PROC_CATEGORY_PS},
        {"Pe", UTF8PROC_CATEGORY_PE}, {"Pi", UTF8PROC_CATEGORY_PI}, {"Pf", UTF8PROC_CATEGORY_PF},
        {"Po", UTF8PROC_CATEGORY_PO}, {"Sm", UTF8PROC_CATEGORY_SM}, {"Sc", UTF8PROC_CATEGORY_SC},
        {"Sk", UTF8PROC_CATEGORY_SK}, {"So", UTF8PROC_CATEGORY_SO}, {"Zs", UTF8PROC_CATEGORY_ZS},
        {"Zl", UTF8PROC_CATEGORY_ZL}, {"Zp", UTF8PROC_CATEGORY_ZP}, {"Cc", UTF8PROC_CATEGORY_CC},
        {"Cf", UTF8PROC_CATEGORY_CF}, {"Co", UTF8PROC_CATEGORY_CO},
    };
    if (len < 1 || len > 2)
        return false;
    uint32_t wanted = 0; /* bits of categories */
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (memcmp(table[i].name, name, len) == 0)
            wanted |= UINT32_C(1) << table[i].category;
    if (!wanted)
        return false;
    pthread_once(&unicode.once, scan_categories);
    for (int i = 0; i < unicode.n; i++)
        if (wanted >> unicode.runs[i].category & 1)
            charset_add(s, unicode.runs[i].lo, unicode.runs[i].hi);
    return true;
}

void charset_fold_case(struct charset *s)
{
    charset_normalise(s);
    int n = s->n;
    for (int i = 0; i < n; i++) {
        struct char_range r = s->r[i];
        /* Beyond U+1E943 (Adlam) no character has two cases. */
        uint32_t hi = r.hi < 0x1E943 ? r.hi : 0x1E943;
        for (uint32_t c = r.lo; c <= hi; c++) {
            uint32_t lower = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
            uint32_t upper = (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
            if (lower != c)
                charset_add(s, lower, lower);
            if (upper != c)
                charset_add(s, upper, upper);
        }
    }
    charset_normalise(s);
}
