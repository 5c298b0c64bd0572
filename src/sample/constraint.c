#include "sample/constraint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sample/grammar.h"

enum { FORCED_TEXT = 64 /* bytes looked ahead: longer than most tokens */, TAIL = 11 };

struct constraint {
    int32_t *stop_ids; /* [n_stop_ids] */
    int n_stop_ids;
    int32_t forced; /* the token that must come next, -1 = none */
    struct err error;

    struct grammar_matcher *matcher; /* NULL = no grammar */
    bool force_text; /* only the grammar decides, so what it leaves no choice about is forced */

    /* the thought, whose tokens are counted */
    enum { NO_THOUGHT, BEFORE_THOUGHT, IN_THOUGHT } thought;
    int budget, n_thought;
    int32_t *end;      /* [n_end] what ends it … */
    int n_end, at_end; /* … and how much of that is written; -1 = it is not being ended */
    const struct grammar_vocab *vocab;
    char tail[TAIL]; /* [n_tail] the last bytes of the answer */
    int n_tail;
    int missing; /* bytes that the last character lacks */

    struct sluice_word *words;  /* [n_words], their ids in word_ids */
    int32_t *word_ids, *recent; /* [n_recent of cap_recent] the last tokens of the answer */
    int n_words, n_recent, cap_recent;
};

static size_t word_ids(const struct sluice_sampling *p, int *longest)
{
    size_t n = 0;
    *longest = 1;
    for (int i = 0; i < p->n_bad_words; i++) {
        n += (size_t)p->bad_words[i].n;
        *longest = p->bad_words[i].n > *longest ? p->bad_words[i].n : *longest;
    }
    return n;
}

size_t constraint_bytes(const struct sluice_sampling *p)
{
    int longest;
    size_t n = word_ids(p, &longest) + (size_t)longest + (size_t)p->n_stop_ids + (size_t)p->n_thinking_end;
    return sizeof(struct constraint) + n * sizeof(int32_t) + (size_t)p->n_bad_words * sizeof *p->bad_words +
           (p->grammar ? grammar_matcher_bytes() : 0);
}

static int32_t *copy_ids(const int32_t *ids, int n)
{
    int32_t *out = mem_alloc((size_t)n * sizeof *out);
    if (n)
        memcpy(out, ids, (size_t)n * sizeof *out);
    return out;
}

static bool is_stop(const struct constraint *c, int32_t token)
{
    for (int i = 0; i < c->n_stop_ids; i++)
        if (c->stop_ids[i] == token)
            return true;
    return false;
}

/* Sets `forced` for the next token. */
static void look_ahead(struct constraint *c)
{
    c->forced = -1;
    if (c->thought == IN_THOUGHT && c->at_end < 0 && c->n_thought >= c->budget && c->missing == 0)
        c->at_end = 0;
    if (c->at_end >= 0 && c->at_end < c->n_end) {
        c->forced = c->end[c->at_end];
        return;
    }
    if (!c->force_text)
        return;
    char text[FORCED_TEXT];
    size_t n = grammar_matcher_forced(c->matcher, text, sizeof text);
    int32_t token = n ? grammar_vocab_longest(c->vocab, text, n) : -1;
    if (token >= 0 && !is_stop(c, token))
        c->forced = token;
}

struct constraint *constraint_create(const struct sluice_sampling *p)
{
    bool counts = p->n_thinking_end > 0;
    if (!p->grammar && !p->n_bad_words && !counts)
        return NULL;
    struct constraint *c = mem_zalloc(1, sizeof *c);
    c->n_stop_ids = p->n_stop_ids;
    c->stop_ids = copy_ids(p->stop_ids, p->n_stop_ids);
    c->vocab = counts ? p->texts : NULL;
    if (p->grammar) {
        c->matcher = grammar_matcher_create(p->grammar);
        c->vocab = grammar_vocab_of(p->grammar);
        c->force_text = p->n_logit_bias == 0 && p->n_allowed_ids == 0 && p->n_bad_words == 0;
    }
    c->at_end = -1;
    if (counts) {
        c->thought = p->thinking_open ? IN_THOUGHT : BEFORE_THOUGHT;
        c->budget = p->thinking_budget;
        c->n_end = p->n_thinking_end;
        c->end = copy_ids(p->thinking_end, p->n_thinking_end);
    }
    int longest;
    size_t n = word_ids(p, &longest);
    c->n_words = p->n_bad_words;
    c->words = mem_alloc((size_t)c->n_words * sizeof *c->words);
    c->word_ids = mem_alloc(n * sizeof *c->word_ids);
    c->cap_recent = longest - 1;
    c->recent = mem_alloc((size_t)longest * sizeof *c->recent);
    int32_t *to = c->word_ids;
    for (int i = 0; i < c->n_words; i++) {
        memcpy(to, p->bad_words[i].ids, (size_t)p->bad_words[i].n * sizeof *to);
        c->words[i] = (struct sluice_word){to, p->bad_words[i].n};
        to += p->bad_words[i].n;
    }
    look_ahead(c);
    return c;
}

void constraint_free(struct constraint *c)
{
    if (!c)
        return;
    grammar_matcher_free(c->matcher);
    free(c->stop_ids);
    free(c->end);
    free(c->words);
    free(c->word_ids);
    free(c->recent);
    free(c);
}

int32_t constraint_forced(const struct constraint *c)
{
    return c->forced;
}

bool constraint_done(const struct constraint *c)
{
    return c->matcher && grammar_matcher_must_end(c->matcher);
}

bool constraint_no_token(struct constraint *c)
{
    if (grammar_matcher_can_end(c->matcher))
        return true;
    err_set(&c->error, ERR_INVALID,
            "none of the tokens that can continue the constrained answer is left by allowed_token_ids, "
            "bad_words and the model's logits");
    return false;
}

const char *constraint_error(const struct constraint *c)
{
    return c->error.msg;
}

/* Keeps the logits whose bits are set. Most words are all ones (the inside of a string) or all zeros. */
static void keep(const uint32_t *bits, float *logits, int vocab)
{
    for (int i = 0; i < vocab; i += 32) {
        float *row = logits + i;
        int n = vocab - i < 32 ? vocab - i : 32;
        uint32_t drop = ~bits[i / 32];
        if (n < 32)
            drop &= (UINT32_C(1) << n) - 1;
        if (drop == UINT32_MAX)
            for (int k = 0; k < 32; k++)
                row[k] = -INFINITY;
        else
            for (; drop; drop &= drop - 1)
                row[__builtin_ctz(drop)] = -INFINITY;
    }
}

bool constraint_mask(struct constraint *c, float *logits, int vocab, bool stoppable, uint32_t *bits)
{
    if (c->matcher) {
        if (grammar_matcher_mask(c->matcher, bits, &c->error))
            return false;
        bool may_stop = stoppable && grammar_matcher_can_end(c->matcher);
        for (int i = 0; i < c->n_stop_ids; i++) {
            uint32_t bit = UINT32_C(1) << (c->stop_ids[i] & 31), *word = &bits[c->stop_ids[i] >> 5];
            *word = may_stop ? *word | bit : *word & ~bit;
        }
        keep(bits, logits, vocab);
    }
    for (int i = 0; i < c->n_words; i++) {
        const struct sluice_word *w = &c->words[i];
        int before = w->n - 1;
        if (before <= c->n_recent && (before == 0 || memcmp(c->recent + c->n_recent - before, w->ids,
                                                            (size_t)before * sizeof *w->ids) == 0))
            logits[w->ids[before]] = -INFINITY;
    }
    return true;
}

/* --- the thought ----------------------------------------------------------------------------------- */

static bool tail_is(const struct constraint *c, const char *mark)
{
    int n = (int)strlen(mark);
    return c->n_tail >= n && memcmp(c->tail + c->n_tail - n, mark, (size_t)n) == 0;
}

static void add_tail(struct constraint *c, char byte)
{
    if (c->n_tail == TAIL)
        memmove(c->tail, c->tail + 1, (size_t)--c->n_tail);
    c->tail[c->n_tail++] = byte;
}

/* Follows the marks of a thought: <think> opens one at the very start, </think> or a call of a tool ends it.
 */
static void follow_thought(struct constraint *c, const char *text, size_t n)
{
    static const char open[] = "<think>";
    for (size_t i = 0; i < n && c->thought != NO_THOUGHT; i++) {
        bool blank = text[i] == ' ' || text[i] == '\n' || text[i] == '\t' || text[i] == '\r';
        if (c->thought == BEFORE_THOUGHT) {
            if (blank && c->n_tail == 0)
                continue;
            add_tail(c, text[i]);
            if (tail_is(c, open))
                c->thought = IN_THOUGHT;
            else if (memcmp(c->tail, open, (size_t)c->n_tail) != 0)
                c->thought = NO_THOUGHT;
            continue;
        }
        add_tail(c, text[i]);
        if (text[i] == '>' && (tail_is(c, "</think>") || tail_is(c, "<tool_call>")))
            c->thought = NO_THOUGHT;
        unsigned byte = (unsigned char)text[i];
        c->missing = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : byte >= 0xC0 ? 1 : byte < 0x80 ? 0 : c->missing;
        c->missing -= byte >= 0x80 && byte < 0xC0 && c->missing > 0;
    }
}

static void count_thought(struct constraint *c, int32_t token)
{
    size_t n;
    const char *text = grammar_vocab_text(c->vocab, token, &n);
    c->n_thought += c->thought == IN_THOUGHT;
    if (c->at_end >= 0)
        c->at_end++;
    follow_thought(c, text, n);
}

static void remember(struct constraint *c, int32_t token)
{
    if (c->n_recent == c->cap_recent)
        memmove(c->recent, c->recent + 1, (size_t)--c->n_recent * sizeof *c->recent);
    c->recent[c->n_recent++] = token;
}

bool constraint_accept(struct constraint *c, int32_t token)
{
    if (is_stop(c, token)) {
        c->forced = -1;
        return true;
    }
    if (c->cap_recent)
        remember(c, token);
    if (c->matcher) {
        size_t n;
        const char *text = grammar_vocab_text(c->vocab, token, &n);
        if (n == 0 || !grammar_matcher_advance(c->matcher, text, n)) {
            err_set(&c->error, ERR_LIMIT, "the grammar cannot be followed beyond token %d of the answer",
                    token);
            c->forced = -1;
            return false;
        }
    }
    if (c->end)
        count_thought(c, token);
    look_ahead(c);
    return true;
}
