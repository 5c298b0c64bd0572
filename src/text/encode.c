/* Text to ids. The stages, each working on what the one before leaves:
 *
 *   added tokens in the text as it comes   "<|im_end|>"
 *   normalisation                          NFC; " " -> "▁"
 *   added tokens in the normalised text
 *   pre-tokenization                       "it's 5" -> "it" "'s" " 5"
 *   merges
 *
 * Bytes that are not UTF-8 are cut out before normalisation and become byte tokens; the text on either side
 * of them goes on as texts of their own. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/private.h"

#define TEXT_MAX_BYTES ((size_t)1 << 30) /* positions in a piece are int32_t */

struct encoding {
    const struct tokenizer *t;
    bool parse_special;
    size_t max_tokens, n_before; /* out->n may grow to n_before + max_tokens */
    struct token_list *out;
    struct bpe_work bpe;
    struct pretokenizer_work pretokenizer;
    struct str normal, chunk; /* the normalised text, and a part of it */
    uint8_t *marks;           /* of normal */
    size_t marks_cap;
};

static int check_limit(const struct encoding *c)
{
    return c->max_tokens && c->out->n - c->n_before > c->max_tokens ? -1 : 0;
}

static int encode_piece(void *arg, const char *piece, size_t len)
{
    struct encoding *c = arg;
    size_t so_far = c->out->n - c->n_before;
    /* a megabyte without a border is not merged for seconds to learn that it is too long */
    if (c->max_tokens && bpe_fewest_tokens(&c->t->bpe, len) + so_far > c->max_tokens)
        return -1;
    bpe_encode(&c->t->bpe, &c->t->vocab, &c->bpe, piece, len, c->out);
    return check_limit(c);
}

static int encode_text(struct encoding *c, const char *text, size_t len)
{
    return pretokenizer_split(&c->t->pretokenizer, &c->pretokenizer, text, len, encode_piece, c);
}

/* Calls encode_gap for what is between the added tokens of text [len], and adds their ids. */
static int encode_between(struct encoding *c, const struct added_tokens *tokens, const char *text, size_t len,
                          const uint8_t *literal,
                          int (*encode_gap)(struct encoding *c, const char *text, size_t len,
                                            const uint8_t *literal))
{
    size_t from = 0, start, end;
    int32_t id;
    while (added_tokens_next(tokens, text, len, literal, from, c->parse_special, &start, &end, &id)) {
        if (start > from && encode_gap(c, text + from, start - from, literal ? literal + from : NULL))
            return -1;
        token_list_add(c->out, id);
        if (check_limit(c))
            return -1;
        from = end;
    }
    return from < len ? encode_gap(c, text + from, len - from, literal ? literal + from : NULL) : 0;
}

static int encode_normalized(struct encoding *c, const char *text, size_t len, const uint8_t *literal)
{
    (void)literal;
    return encode_text(c, text, len);
}

static bool any_literal(const uint8_t *literal, size_t len)
{
    for (size_t i = 0; literal && i < len; i++)
        if (literal[i])
            return true;
    return false;
}

/* Normalises text [len] into c->normal and returns the marks of the result (NULL = none).
 *
 * Normalisation moves bytes, so the marks follow in chunks: the text is cut where the mark changes, if an
 * ASCII character begins there, which no normal form joins to what is before it. A chunk that holds a literal
 * byte is literal: near a border without ASCII, a token may be missed, but none is found in literal text. */
static const uint8_t *normalize_marked(struct encoding *c, const char *text, size_t len, bool first,
                                       const uint8_t *literal)
{
    const struct normalizer *n = &c->t->normalizer;
    if (!c->t->normalized.n || !any_literal(literal, len)) {
        normalizer_run(n, text, len, first, &c->normal);
        return NULL;
    }
    str_clear(&c->normal);
    for (size_t start = 0, end; start < len; start = end) {
        bool mark = literal[start];
        for (end = start + 1; end < len; end++) {
            if (!literal[end] != !literal[end - 1] && (unsigned char)text[end] < 0x80)
                break;
            mark |= literal[end] != 0;
        }
        normalizer_run(n, text + start, end - start, first && start == 0, &c->chunk);
        size_t at = c->normal.len;
        str_add(&c->normal, c->chunk.data, c->chunk.len);
        if (c->normal.len > c->marks_cap) {
            c->marks_cap = c->normal.len * 2;
            c->marks = mem_realloc(c->marks, c->marks_cap, 1);
        }
        memset(c->marks + at, mark, c->chunk.len);
    }
    return c->marks;
}

/* What is between two added tokens, or all of the text. */
static int encode_raw(struct encoding *c, const char *text, size_t len, const uint8_t *literal)
{
    for (size_t i = 0; i < len;) {
        size_t valid = utf8_valid_prefix(text + i, len - i);
        if (valid == 0) {
            bpe_encode_byte(&c->t->bpe, &c->t->vocab, &c->bpe, (unsigned char)text[i], c->out);
            if (check_limit(c))
                return -1;
            i++;
            continue;
        }
        const uint8_t *marks = literal ? literal + i : NULL;
        if (c->t->normalizer.n == 0) {
            if (encode_between(c, &c->t->normalized, text + i, valid, marks, encode_normalized))
                return -1;
        } else {
            marks = normalize_marked(c, text + i, valid, i == 0, marks);
            if (encode_between(c, &c->t->normalized, str_text(&c->normal), c->normal.len, marks,
                               encode_normalized))
                return -1;
        }
        i += valid;
    }
    return 0;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, const uint8_t *literal,
                     unsigned flags, size_t max_tokens, struct token_list *out, struct err *e)
{
    if (len > TEXT_MAX_BYTES)
        return err_set(e, ERR_LIMIT, "a text of %zu bytes; at most %zu can be tokenized", len,
                       TEXT_MAX_BYTES);
    struct encoding c = {
        .t = t,
        .parse_special = flags & TOKENIZER_PARSE_SPECIAL,
        .max_tokens = max_tokens,
        .n_before = out->n,
        .out = out,
    };
    if (flags & TOKENIZER_ADD_SPECIAL)
        for (int i = 0; i < t->n_before; i++)
            token_list_add(out, t->before[i]);
    int status = encode_between(&c, &t->raw, text, len, literal, encode_raw);
    if (flags & TOKENIZER_ADD_SPECIAL)
        for (int i = 0; i < t->n_after; i++)
            token_list_add(out, t->after[i]);
    if (status || check_limit(&c))
        status = err_set(e, ERR_LIMIT, "the text has more than %zu tokens", max_tokens);
    bpe_work_free(&c.bpe);
    pretokenizer_work_free(&c.pretokenizer);
    str_free(&c.normal);
    str_free(&c.chunk);
    free(c.marks);
    return status;
}
