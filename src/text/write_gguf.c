/* The inverse of load_gguf.c for byte-level BPE. The vocabulary is taken from the tokenizer as it was loaded,
 * so that what is refused there is refused here; merges and the description of the cuts, which loading
 * compiles away, from tokenizer.json itself. */
#include "text/write_gguf.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/private.h"

/* Texts that are made up or joined, kept until they are written. */
struct texts {
    struct gguf_text *items; /* [n]; s is NULL for those in `blob` until finish_texts */
    size_t *at;              /* [n] where in blob */
    struct str blob;
    size_t n;
};

static struct texts new_texts(size_t cap)
{
    return (struct texts){.items = mem_zalloc(cap + 1, sizeof(struct gguf_text)),
                          .at = mem_zalloc(cap + 1, sizeof(size_t))};
}

static void add_text(struct texts *t, const char *s, size_t len)
{
    t->at[t->n] = t->blob.len;
    t->items[t->n++].len = len;
    str_add(&t->blob, s, len);
}

static void write_texts(struct texts *t, struct gguf_writer *w, const char *key)
{
    for (size_t i = 0; i < t->n; i++)
        t->items[i].s = str_text(&t->blob) + t->at[i];
    gguf_writer_texts(w, key, t->items, t->n);
    free(t->items);
    free(t->at);
    str_free(&t->blob);
}

/* An id that stands for nothing. */
static void add_filler(struct texts *t, int32_t *types, enum gguf_token_type type)
{
    char name[32];
    types[t->n] = type;
    add_text(t, name, (size_t)snprintf(name, sizeof name, "<|unused_%zu|>", t->n));
}

/* ---- From tokenizer.json ----------------------------------------------------------------------------------
 */

/* Adds the regular expressions by which a stage of the pre-tokenizer cuts. False if it does so in a way that
 * no gguf_pre describes. */
static bool add_cuts(const json_t *stage, const char *cuts[2], int *n)
{
    const char *type = json_string_value(json_object_get(stage, "type")), *cut = NULL;
    const json_t *members = json_object_get(stage, "pretokenizers"), *member;
    size_t i;
    if (!type)
        return false;
    if (strcmp(type, "Sequence") == 0) {
        json_array_foreach(members, i, member)
        {
            if (!add_cuts(member, cuts, n))
                return false;
        }
        return true;
    }
    if (strcmp(type, "Split") == 0) {
        const char *behavior = json_string_value(json_object_get(stage, "behavior"));
        cut = json_string_value(json_object_get(json_object_get(stage, "pattern"), "Regex"));
        if (!cut || !behavior || strcmp(behavior, "Isolated") != 0 ||
            json_is_true(json_object_get(stage, "invert")))
            return false;
    } else if (strcmp(type, "Digits") == 0) {
        if (!json_is_true(json_object_get(stage, "individual_digits")))
            return false;
        cut = "\\p{N}";
    } else if (strcmp(type, "ByteLevel") == 0) {
        const json_t *use_regex = json_object_get(stage, "use_regex"),
                     *prefix = json_object_get(stage, "add_prefix_space");
        if (!json_is_false(prefix)) /* absent means true */
            return false;
        if (json_is_false(use_regex))
            return true;
        cut = gpt2_pattern;
    }
    if (!cut || *n == 2)
        return false;
    cuts[(*n)++] = cut;
    return true;
}

static bool same(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static const char *pre_name(const struct model_file *f, const struct tokenizer *t, struct err *e)
{
    const char *cuts[2] = {NULL};
    int n = 0;
    bool nfc = t->normalizer.n == 1 && t->normalizer.steps[0].kind == NORMALIZE_UNICODE &&
               t->normalizer.steps[0].compose && !t->normalizer.steps[0].compat;
    bool known = t->bpe.byte_level && (t->normalizer.n == 0 || nfc) &&
                 add_cuts(json_object_get(f->tokenizer, "pre_tokenizer"), cuts, &n);
    for (const struct gguf_pre *p = gguf_pres; known && p->name; p++)
        if (strcmp(p->name, "default") != 0 && same(p->cuts[0], cuts[0]) && same(p->cuts[1], cuts[1]) &&
            p->nfc == nfc && p->ignore_merges == t->bpe.ignore_merges)
            return p->name;
    err_set(e, ERR_UNSUPPORTED, "%s/tokenizer.json: %s", f->path,
            t->bpe.byte_level ? "GGUF has no name for its way of cutting texts"
                              : "only byte-level BPE can be written as GGUF");
    return NULL;
}

static void write_tokens(const struct tokenizer *t, int rows, struct gguf_writer *w)
{
    const struct vocab *v = &t->vocab;
    struct texts names = new_texts((size_t)rows);
    int32_t *types = mem_zalloc((size_t)rows, sizeof *types);
    for (int32_t id = 0; id < rows; id++) {
        unsigned flags = id < v->n ? v->tokens[id].flags : 0;
        if (!(flags & TOKEN_USED)) {
            add_filler(&names, types, TYPE_UNUSED);
            continue;
        }
        size_t len;
        const char *name = vocab_name(v, id, &len);
        types[id] = flags & TOKEN_SPECIAL ? TYPE_CONTROL
                    : flags & TOKEN_ADDED ? TYPE_USER_DEFINED
                                          : TYPE_NORMAL;
        add_text(&names, name, len);
    }
    write_texts(&names, w, "tokenizer.ggml.tokens");
    gguf_writer_numbers(w, "tokenizer.ggml.token_type", GGUF_I32, types, (uint64_t)rows);
    free(types);
}

/* Merges are "a b" or ["a", "b"]; loading has checked them. */
static void write_merges(const json_t *merges, struct gguf_writer *w)
{
    struct texts out = new_texts(json_array_size(merges));
    struct str joined = {0};
    size_t i;
    const json_t *merge;
    json_array_foreach(merges, i, merge)
    {
        str_clear(&joined);
        if (json_is_string(merge)) {
            str_add(&joined, json_string_value(merge), json_string_length(merge));
        } else {
            for (size_t k = 0; k < 2; k++) {
                const json_t *half = json_array_get(merge, k);
                str_adds(&joined, k ? " " : "");
                str_add(&joined, json_string_value(half), json_string_length(half));
            }
        }
        add_text(&out, str_text(&joined), joined.len);
    }
    str_free(&joined);
    write_texts(&out, w, "tokenizer.ggml.merges");
}

/* The ends: eos is the first stop id, and those that GGUF has names for follow it. */
static void write_ends(const struct tokenizer *t, struct gguf_writer *w)
{
    static const char *const others[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    int n_others = 0;
    if (t->bos >= 0)
        gguf_writer_u32(w, "tokenizer.ggml.bos_token_id", (uint32_t)t->bos);
    if (t->eos >= 0)
        gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)t->eos);
    for (int i = 0; i < t->n_stop_ids && n_others < 2; i++)
        if (t->stop_ids[i] != t->eos)
            gguf_writer_u32(w, others[n_others++], (uint32_t)t->stop_ids[i]);
    gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", t->n_before > 0);
    gguf_writer_bool(w, "tokenizer.ggml.add_eos_token", t->n_after > 0);
}

int tokenizer_write_gguf(const struct model_file *f, int rows, struct gguf_writer *w, struct err *e)
{
    struct tokenizer *t = tokenizer_open(f, e);
    if (!t)
        return -1;
    int rc = -1;
    const char *pre = pre_name(f, t, e);
    if (!pre)
        goto done;
    if (t->vocab.n > rows) {
        err_set(e, ERR_INVALID, "%s/tokenizer.json has %d tokens, more than the model's %d", f->path,
                t->vocab.n, rows);
        goto done;
    }
    if (t->n_before > 1 || t->n_after > 1 || (t->n_before && t->before[0] != t->bos) ||
        (t->n_after && t->after[0] != t->eos)) {
        err_set(e, ERR_UNSUPPORTED,
                "%s/tokenizer.json puts other tokens around a text than GGUF can say (BOS and EOS)", f->path);
        goto done;
    }
    gguf_writer_str(w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_str(w, "tokenizer.ggml.pre", pre);
    write_tokens(t, rows, w);
    write_merges(json_object_get(json_object_get(f->tokenizer, "model"), "merges"), w);
    write_ends(t, w);
    if (f->chat_template)
        gguf_writer_str(w, "tokenizer.chat_template", f->chat_template);
    rc = 0;
done:
    tokenizer_free(t);
    return rc;
}

/* ---- Made up ----------------------------------------------------------------------------------------------
 */

void tokenizer_write_bytes(const char *pre, int rows, struct gguf_writer *w)
{
    static const char *const controls[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    static const char chatml[] = "{% for message in messages %}"
                                 "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
                                 "{% endfor %}"
                                 "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    struct texts names = new_texts((size_t)rows);
    int32_t *types = mem_zalloc((size_t)rows, sizeof *types);
    for (int byte = 0; byte < 256; byte++) {
        struct str name = {0};
        str_add_utf8(&name, byte_to_char((unsigned char)byte));
        types[names.n] = TYPE_NORMAL;
        add_text(&names, str_text(&name), name.len);
        str_free(&name);
    }
    for (int i = 0; i < 3; i++) {
        types[names.n] = TYPE_CONTROL;
        add_text(&names, controls[i], strlen(controls[i]));
    }
    /* Normal, so that an answer of random ids can be seen; no text becomes them, as there are no merges. */
    while (names.n < (size_t)rows)
        add_filler(&names, types, TYPE_NORMAL);
    gguf_writer_str(w, "tokenizer.ggml.model", "gpt2");
    gguf_writer_str(w, "tokenizer.ggml.pre", pre);
    write_texts(&names, w, "tokenizer.ggml.tokens");
    gguf_writer_numbers(w, "tokenizer.ggml.token_type", GGUF_I32, types, (uint64_t)rows);
    gguf_writer_texts(w, "tokenizer.ggml.merges", NULL, 0);
    gguf_writer_u32(w, "tokenizer.ggml.eos_token_id", 258);
    gguf_writer_u32(w, "tokenizer.ggml.padding_token_id", 256);
    gguf_writer_bool(w, "tokenizer.ggml.add_bos_token", false);
    gguf_writer_str(w, "tokenizer.chat_template", chatml);
    free(types);
}
