/* The table of tokens. Names and texts lie in one blob, so that a quarter of a million tokens are three
 * allocations; a hash table of ids finds a token by its name. */
#include "text/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/normalize.h"

void vocab_free(struct vocab *v)
{
    free(v->tokens);
    free(v->buckets);
    str_free(&v->blob);
    *v = (struct vocab){0};
}

static uint64_t hash_name(const char *name, size_t len)
{
    uint64_t h = 0x9E3779B97F4A7C15u ^ len;
    while (len) {
        uint64_t word = 0;
        size_t n = len < 8 ? len : 8;
        memcpy(&word, name, n);
        h = (h ^ word) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
        name += n;
        len -= n;
    }
    return h;
}

/* The bucket that holds the name, or the empty one where it belongs. */
static size_t find_bucket(const struct vocab *v, const char *name, size_t len)
{
    size_t i = hash_name(name, len) & v->bucket_mask;
    for (;; i = (i + 1) & v->bucket_mask) {
        int32_t id = v->buckets[i];
        if (id < 0)
            return i;
        const struct token *t = &v->tokens[id];
        if (t->name_len == len && memcmp(v->blob.data + t->name, name, len) == 0)
            return i;
    }
}

static void grow_buckets(struct vocab *v)
{
    size_t n_old = v->buckets ? v->bucket_mask + 1 : 0;
    int32_t *old = v->buckets;
    size_t n = n_old ? n_old * 2 : 1024;
    v->buckets = mem_realloc(NULL, n, sizeof *v->buckets);
    memset(v->buckets, 0xFF, n * sizeof *v->buckets);
    v->bucket_mask = n - 1;
    for (size_t i = 0; i < n_old; i++) {
        if (old[i] < 0)
            continue;
        const struct token *t = &v->tokens[old[i]];
        v->buckets[find_bucket(v, v->blob.data + t->name, t->name_len)] = old[i];
    }
    free(old);
}

/* Offsets into the blob are 32 bits wide. */
static int check_blob(const struct vocab *v, size_t extra, struct err *e)
{
    if (extra > UINT32_MAX || v->blob.len > UINT32_MAX - extra)
        return err_set(e, ERR_INVALID, "the vocabulary's text is larger than 4 GB");
    return 0;
}

int vocab_add(struct vocab *v, int64_t id, const char *name, size_t len, unsigned flags, struct err *e)
{
    if (id < 0 || id >= VOCAB_MAX_ID)
        return err_set(e, ERR_INVALID, "token \"%.*s\" has id %lld, outside 0 … %d",
                       (int)(len < 100 ? len : 100), name, (long long)id, VOCAB_MAX_ID - 1);
    if (check_blob(v, len, e))
        return -1;
    if (id >= v->cap) {
        int cap = v->cap ? v->cap : 1024;
        while (cap <= id)
            cap *= 2;
        v->tokens = mem_realloc(v->tokens, (size_t)cap, sizeof *v->tokens);
        memset(v->tokens + v->cap, 0, (size_t)(cap - v->cap) * sizeof *v->tokens);
        v->cap = cap;
    }
    if (id >= v->n)
        v->n = (int)id + 1;
    struct token *t = &v->tokens[id];
    if (t->flags & TOKEN_USED) {
        if (t->name_len != len || memcmp(v->blob.data + t->name, name, len) != 0)
            return err_set(e, ERR_INVALID, "tokens \"%.*s\" and \"%.*s\" have the same id %lld",
                           (int)(t->name_len < 100 ? t->name_len : 100), v->blob.data + t->name,
                           (int)(len < 100 ? len : 100), name, (long long)id);
        t->flags |= flags;
        return 0;
    }
    t->name = (uint32_t)v->blob.len;
    t->name_len = (uint32_t)len;
    t->flags = flags | TOKEN_USED;
    str_add(&v->blob, name, len);
    if (v->n_names * 2 >= v->bucket_mask)
        grow_buckets(v);
    size_t bucket = find_bucket(v, name, len);
    if (v->buckets[bucket] < 0) {
        v->buckets[bucket] = (int32_t)id;
        v->n_names++;
    }
    return 0;
}

int32_t vocab_find(const struct vocab *v, const char *name, size_t len)
{
    return v->buckets ? v->buckets[find_bucket(v, name, len)] : -1;
}

int32_t vocab_find_model(const struct vocab *v, const char *name, size_t len)
{
    int32_t id = vocab_find(v, name, len);
    return id >= 0 && v->tokens[id].flags & TOKEN_MODEL ? id : -1;
}

/* --- from names to the bytes of a text ----------------------------------------------------------- */

void decoder_free(struct decoder *d)
{
    for (int i = 0; i < d->n_replace; i++) {
        str_free(&d->replace[i].from);
        str_free(&d->replace[i].to);
    }
    *d = (struct decoder){0};
}

/* The printable characters of Latin-1 stand for themselves; the other 68 bytes, in order, for U+0100 … . */
static bool byte_is_visible(unsigned b)
{
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b != 0xAD);
}

unsigned byte_to_char(unsigned char byte)
{
    if (byte_is_visible(byte))
        return byte;
    if (byte <= ' ')
        return 0x100u + byte;
    if (byte <= 0xA0)
        return 0x121u + (byte - 0x7Fu);
    return 0x143; /* the soft hyphen, 0xAD */
}

int char_to_byte(unsigned c)
{
    if (c < 0x100)
        return byte_is_visible(c) ? (int)c : -1;
    if (c <= 0x120)
        return (int)c - 0x100;
    if (c <= 0x142)
        return (int)c - 0x121 + 0x7F;
    return c == 0x143 ? 0xAD : -1;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int vocab_byte_name(const char *name, size_t len)
{
    if (len != 6 || memcmp(name, "<0x", 3) != 0 || name[5] != '>')
        return -1;
    int high = hex_digit(name[3]), low = hex_digit(name[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* False if some character is not of the byte alphabet: the name then stands for itself, as added tokens do.
 */
static bool decode_byte_level(const char *name, size_t len, struct str *out)
{
    for (size_t i = 0; i < len;) {
        unsigned c;
        int n = utf8_decode(name + i, len - i, &c);
        int byte = n ? char_to_byte(c) : -1;
        if (byte < 0)
            return false;
        str_addc(out, (char)byte);
        i += (size_t)n;
    }
    return true;
}

static void decode_name(const struct decoder *d, const char *name, size_t len, struct str *out,
                        struct str *scratch)
{
    str_clear(out);
    if (d->byte_level) {
        if (decode_byte_level(name, len, out))
            return;
        str_clear(out);
    }
    int byte = d->byte_fallback ? vocab_byte_name(name, len) : -1;
    if (byte >= 0) {
        str_addc(out, (char)byte);
        return;
    }
    str_add(out, name, len);
    for (int i = 0; i < d->n_replace; i++) {
        str_clear(scratch);
        replace_all(out->data, out->len, &d->replace[i].from, &d->replace[i].to, scratch);
        struct str swap = *out;
        *out = *scratch;
        *scratch = swap;
    }
}

int vocab_decode_names(struct vocab *v, const struct decoder *d, struct err *e)
{
    struct str text = {0}, scratch = {0};
    int status = 0;
    for (int id = 0; id < v->n && status == 0; id++) {
        struct token *t = &v->tokens[id];
        if (!(t->flags & (TOKEN_MODEL | TOKEN_ADDED)))
            continue; /* a hole, or an entry that the file marks as unused: no text */
        decode_name(d, v->blob.data + t->name, t->name_len, &text, &scratch);
        t->text_len = (uint32_t)text.len;
        if (text.len == t->name_len && memcmp(text.data, v->blob.data + t->name, text.len) == 0) {
            t->text = t->name;
            continue;
        }
        status = check_blob(v, text.len, e);
        t->text = (uint32_t)v->blob.len;
        str_add(&v->blob, text.data, text.len);
    }
    str_free(&text);
    str_free(&scratch);
    return status;
}
