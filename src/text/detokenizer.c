/* Ids to text, one by one. A token adds bytes, not characters: an emoji may be three tokens. Bytes that may
 * still become a character are held back; what can no longer become one is U+FFFD, by the rule that Unicode
 * recommends and Python follows: one for each maximal part that begins a character. */
#include <string.h>

#include "text/private.h"

/* The first two bytes of an encoded surrogate. No character begins so, but Python's decoder waits for the
 * third byte before it gives up (so that its "surrogatepass" can work), and then each byte is one U+FFFD. */
static bool is_half_surrogate(const unsigned char *held, int n)
{
    return n == 2 && held[0] == 0xED && held[1] >= 0xA0 && held[1] <= 0xBF;
}

/* May held [n], 1 … 3 bytes that are not a whole character, still become one? */
static bool may_continue(const unsigned char *held, int n)
{
    unsigned char lead = held[0];
    int size = lead >= 0xC2 && lead <= 0xDF   ? 2
               : lead >= 0xE0 && lead <= 0xEF ? 3
               : lead >= 0xF0 && lead <= 0xF4 ? 4
                                              : 0;
    if (n >= size)
        return false;
    if (is_half_surrogate(held, n))
        return true;
    /* The second byte's range is narrower where the first alone would allow an overlong form, a surrogate or
     * a character past U+10FFFF. */
    unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (n > 1 && (held[1] < low || held[1] > high))
        return false;
    return n < 3 || (held[2] & 0xC0) == 0x80;
}

/* Gives up on the first n bytes held, which began a character. */
static void replace_held(struct detokenizer *d, int n, struct str *out)
{
    for (int i = is_half_surrogate(d->held, n) ? 2 : 1; i > 0; i--)
        str_add_utf8(out, 0xFFFD);
    d->n_held = 0;
}

static void add_byte(struct detokenizer *d, unsigned char byte, struct str *out)
{
    int before = d->n_held;
    d->held[d->n_held++] = byte;
    unsigned c;
    if (utf8_decode((char *)d->held, (size_t)d->n_held, &c) == d->n_held) {
        str_add(out, (char *)d->held, (size_t)d->n_held);
        d->n_held = 0;
    } else if (!may_continue(d->held, d->n_held)) {
        replace_held(d, before ? before : 1, out);
        if (before) /* the byte that did not fit may begin something itself */
            add_byte(d, byte, out);
    }
}

void detokenizer_init(struct detokenizer *d, const struct tokenizer *t, bool skip_special)
{
    *d = (struct detokenizer){.t = t, .skip_special = skip_special};
}

void detokenizer_add(struct detokenizer *d, int32_t id, struct str *out)
{
    if (d->skip_special && tokenizer_is_special(d->t, id))
        return;
    size_t len;
    const char *bytes = tokenizer_bytes(d->t, id, &len);
    if (len == 0)
        return;
    if (!d->started && d->t->decoder.strip_leading_space && bytes[0] == ' ')
        bytes++, len--;
    d->started = true;
    for (size_t i = 0; i < len;) {
        size_t valid = d->n_held ? 0 : utf8_valid_prefix(bytes + i, len - i);
        str_add(out, bytes + i, valid);
        i += valid;
        if (i < len)
            add_byte(d, (unsigned char)bytes[i++], out);
    }
}

void detokenizer_flush(struct detokenizer *d, struct str *out)
{
    if (d->n_held)
        replace_held(d, d->n_held, out);
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                      struct str *out)
{
    struct detokenizer d;
    detokenizer_init(&d, t, skip_special);
    for (size_t i = 0; i < n; i++)
        detokenizer_add(&d, ids[i], out);
    detokenizer_flush(&d, out);
}
