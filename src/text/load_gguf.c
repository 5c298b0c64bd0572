/* A tokenizer from GGUF metadata (tokenizer.ggml.*). The file holds the tokens; how text is cut and
 * normalised it only names, so the names are a table here:
 *
 *   model "gpt2"    byte-level BPE with a list of merges; "pre" names the pre-tokenizer
 *   model "llama"   SentencePiece's BPE: no merges, any two neighbours that make a token may merge, the one
 *                   with the highest score first */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "file/gguf.h"
#include "text/private.h"

/* Written as tokenizer.json files of these models write them. */
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
#define SPACES       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3_CUT \
    CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define QWEN2_CUT CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define QWEN35_CUT \
    CONTRACTIONS "[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES

const struct gguf_pre gguf_pres[] = {
    {"default", {gpt2_pattern}, false, false, false},
    {"gpt-2", {gpt2_pattern}, false, false, false},
    {"smollm", {"\\p{N}", gpt2_pattern}, false, false, false},
    {"llama-bpe", {LLAMA3_CUT}, false, true, true},
    {"llama3", {LLAMA3_CUT}, false, true, true},
    {"llama-v3", {LLAMA3_CUT}, false, true, true},
    {"qwen2", {QWEN2_CUT}, true, false, false},
    {"qwen35", {QWEN35_CUT}, true, false, false},
    {NULL, {NULL}, false, false, false},
};

/* --- tokens --------------------------------------------------------------------------------------- */

static int load_token(struct tokenizer *t, const struct gguf *g, int64_t id, bool has_types,
                      bool sentencepiece, struct err *e)
{
    size_t len;
    const char *name = gguf_array_str(g, "tokenizer.ggml.tokens", id, &len);
    int64_t type = TYPE_NORMAL;
    if (!name || (has_types && !gguf_array_i64(g, "tokenizer.ggml.token_type", id, &type)))
        return err_set(e, ERR_INVALID, "token %lld cannot be read", (long long)id);
    struct added_token added = {.id = (int32_t)id, .special = type != TYPE_USER_DEFINED};
    switch (type) {
    case TYPE_BYTE:
        if (sentencepiece && vocab_byte_name(name, len) < 0)
            return err_set(e, ERR_INVALID,
                           "token %lld is a byte, but its name is \"%.*s\", not \"<0x00>\" … \"<0xFF>\"",
                           (long long)id, (int)(len < 100 ? len : 100), name);
        /* fall through */
    case TYPE_NORMAL:
        return vocab_add(&t->vocab, id, name, len, TOKEN_MODEL, e);
    case TYPE_UNUSED:
        return vocab_add(&t->vocab, id, name, len, 0, e);
    case TYPE_UNKNOWN:
    case TYPE_CONTROL:
    case TYPE_USER_DEFINED:
        if (len == 0) /* cannot be in a text, and need not */
            return vocab_add(&t->vocab, id, name, len, added.special ? TOKEN_SPECIAL : 0, e);
        return tokenizer_add_token(t, name, len, added, false, e);
    default:
        return err_set(e, ERR_INVALID, "token %lld has the unknown type %lld", (long long)id,
                       (long long)type);
    }
}

static int load_tokens(struct tokenizer *t, const struct gguf *g, bool sentencepiece, struct err *e)
{
    int64_t n = gguf_array_len(g, "tokenizer.ggml.tokens");
    int64_t n_types = gguf_array_len(g, "tokenizer.ggml.token_type");
    if (n <= 0 || n > VOCAB_MAX_ID)
        return err_set(e, ERR_INVALID, "tokenizer.ggml.tokens must be a list of 1 … %d strings",
                       VOCAB_MAX_ID);
    if (n_types >= 0 && n_types != n)
        return err_set(e, ERR_INVALID, "tokenizer.ggml.token_type has %lld entries for %lld tokens",
                       (long long)n_types, (long long)n);
    for (int64_t id = 0; id < n; id++)
        if (load_token(t, g, id, n_types >= 0, sentencepiece, e))
            return -1;
    return 0;
}

/* --- byte-level BPE ------------------------------------------------------------------------------- */

/* "a b"; a name never holds a space in the byte alphabet, but may begin with one in files that converters got
 * wrong. Merges of names that the file gives otherwise (an added token that was also an entry) cannot be used
 * and are passed over, as other readers do. */
static int load_merges(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    int64_t n = gguf_array_len(g, "tokenizer.ggml.merges"), n_unknown = 0;
    if (n < 0 || n > UINT32_MAX)
        return err_set(e, ERR_INVALID, "tokenizer.ggml.merges must be a list of strings");
    struct str scratch = {0};
    int status = 0;
    for (int64_t rank = 0; rank < n && status == 0; rank++) {
        size_t len;
        const char *merge = gguf_array_str(g, "tokenizer.ggml.merges", rank, &len);
        const char *space = merge && len > 1 ? memchr(merge + 1, ' ', len - 1) : NULL;
        if (!space) {
            status = err_set(e, ERR_INVALID, "tokenizer.ggml.merges[%lld] is not two names and a space",
                             (long long)rank);
            break;
        }
        size_t left_len = (size_t)(space - merge);
        int32_t left = vocab_find_model(&t->vocab, merge, left_len);
        int32_t right = vocab_find_model(&t->vocab, space + 1, len - left_len - 1);
        if (left < 0 || right < 0 || !tokenizer_add_merge(t, left, right, (uint32_t)rank, &scratch))
            n_unknown++;
    }
    str_free(&scratch);
    if (n_unknown)
        log_warn("tokenizer: %lld of %lld merges name tokens that the file lacks", (long long)n_unknown,
                 (long long)n);
    return status;
}

static int load_byte_level(struct tokenizer *t, const struct gguf *g, bool *add_bos, struct err *e)
{
    size_t len;
    const char *name = gguf_str(g, "tokenizer.ggml.pre", &len);
    if (!name || strcmp(name, "default") == 0) {
        log_warn("tokenizer: the file does not name its pre-tokenizer (tokenizer.ggml.pre); GPT-2's is used");
        name = "default";
    }
    const struct gguf_pre *pre = gguf_pres;
    while (pre->name && strcmp(name, pre->name) != 0)
        pre++;
    if (!pre->name)
        return err_set(e, ERR_UNSUPPORTED,
                       "the pre-tokenizer \"%.100s\" (tokenizer.ggml.pre) is not supported", name);
    *add_bos = pre->add_bos;
    t->bpe.byte_level = t->decoder.byte_level = true;
    t->bpe.ignore_merges = pre->ignore_merges;
    for (int i = 0; i < 2 && pre->cuts[i]; i++)
        if (!pretokenizer_add(&t->pretokenizer, pre->cuts[i], strlen(pre->cuts[i]), true, SPLIT_ISOLATED, e))
            return -1;
    if (pre->nfc) {
        struct normalize_step *s = normalizer_add(&t->normalizer, NORMALIZE_UNICODE, e);
        if (!s)
            return -1;
        s->compose = true;
    }
    return load_tokens(t, g, false, e) || load_merges(t, g, e);
}

/* --- SentencePiece -------------------------------------------------------------------------------- */

static const char sp_space[] = "\xE2\x96\x81"; /* U+2581 stands for a space */

struct scored {
    double score;
    int32_t id;
};

static int higher_score(const void *a, const void *b)
{
    double x = ((const struct scored *)a)->score, y = ((const struct scored *)b)->score;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Cutting a name in every way is quadratic in its length; no model comes near this. */
#define SP_NAME_MAX_BYTES 512

/* Every way to cut the token's name into two entries is a merge. */
static void add_merges_of(struct tokenizer *t, int32_t id, uint32_t rank, struct str *scratch)
{
    size_t len;
    const char *name = vocab_name(&t->vocab, id, &len);
    for (size_t i = 1; i < len; i++) {
        if (((unsigned char)name[i] & 0xC0) == 0x80)
            continue;
        int32_t left = vocab_find_model(&t->vocab, name, i);
        int32_t right = left < 0 ? -1 : vocab_find_model(&t->vocab, name + i, len - i);
        if (right >= 0)
            tokenizer_add_merge(t, left, right, rank, scratch);
    }
}

/* Scores become ranks, equal scores equal ranks (the leftmost pair goes first then), and the merges that
 * SentencePiece finds by looking up neighbours are written out, so that one algorithm serves both models. */
static int load_scores(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    int64_t n = gguf_array_len(g, "tokenizer.ggml.scores");
    if (n != t->vocab.n)
        return err_set(e, ERR_INVALID, "tokenizer.ggml.scores must have an entry for each of the %d tokens",
                       t->vocab.n);
    struct scored *order = mem_realloc(NULL, (size_t)n, sizeof *order);
    struct str scratch = {0};
    int status = 0, n_order = 0;
    for (int32_t id = 0; id < n && status == 0; id++) {
        double score;
        if (!gguf_array_f64(g, "tokenizer.ggml.scores", id, &score) || isnan(score))
            status = err_set(e, ERR_INVALID, "tokenizer.ggml.scores[%d] is not a number", id);
        else if (t->vocab.tokens[id].name_len > SP_NAME_MAX_BYTES)
            status = err_set(e, ERR_UNSUPPORTED, "token %d is %u bytes long; at most %d are possible", id,
                             t->vocab.tokens[id].name_len, SP_NAME_MAX_BYTES);
        else if (t->vocab.tokens[id].flags & TOKEN_MODEL)
            order[n_order++] = (struct scored){score, id};
    }
    if (status == 0) {
        qsort(order, (size_t)n_order, sizeof *order, higher_score);
        uint32_t rank = 0;
        for (int i = 0; i < n_order; i++) {
            if (i && order[i].score != order[i - 1].score)
                rank++;
            add_merges_of(t, order[i].id, rank, &scratch);
        }
    }
    str_free(&scratch);
    free(order);
    return status;
}

static int load_sentencepiece(struct tokenizer *t, const struct gguf *g, struct err *e)
{
    bool add_space = true;
    gguf_bool(g, "tokenizer.ggml.add_space_prefix", &add_space);
    struct normalize_step *s;
    if (add_space) {
        if (!(s = normalizer_add(&t->normalizer, NORMALIZE_PREPEND, e)))
            return -1;
        str_adds(&s->to, " ");
    }
    if (!(s = normalizer_add(&t->normalizer, NORMALIZE_REPLACE, e)))
        return -1;
    str_adds(&s->from, " ");
    str_adds(&s->to, sp_space);
    t->decoder.byte_fallback = t->bpe.byte_fallback = true;
    t->bpe.fuse_unk = true;
    t->decoder.strip_leading_space = add_space;
    struct decoder_replace *r = &t->decoder.replace[t->decoder.n_replace++];
    str_adds(&r->from, sp_space);
    str_adds(&r->to, " ");
    int64_t unk;
    if (load_tokens(t, g, true, e) || load_scores(t, g, e))
        return -1;
    if (gguf_i64(g, "tokenizer.ggml.unknown_token_id", &unk) && unk >= 0 && unk < t->vocab.n)
        t->bpe.unk = (int32_t)unk;
    return 0;
}

/* --- beginnings and ends -------------------------------------------------------------------------- */

static int32_t named_id(const struct tokenizer *t, const struct gguf *g, const char *key)
{
    int64_t id;
    return gguf_i64(g, key, &id) && id >= 0 && id < t->vocab.n ? (int32_t)id : -1;
}

/* The first of these names that is a control token of the vocabulary; NULL ends the list. */
static int32_t first_control(const struct tokenizer *t, const char *const *names)
{
    for (; *names; names++) {
        int32_t id = vocab_find(&t->vocab, *names, strlen(*names));
        if (tokenizer_is_special(t, id))
            return id;
    }
    return -1;
}

/* Stop ids are the file's eos, eot and eom. Older converters wrote no eot, although a chat model ends its
 * turns with a token that is not its eos (Gemma: <eos> and <end_of_turn>): then the token that ends turns in
 * the known chat formats is found by name. So is the token that ends documents: a chat model whose eos is
 * <|im_end|> may still write <|endoftext|>, and the generation config, which would say so, is not in a GGUF.
 */
static void load_ends(struct tokenizer *t, const struct gguf *g, bool add_bos)
{
    static const char *const turn_ends[] = {"<|im_end|>", "<|eot_id|>", "<end_of_turn>", NULL};
    static const char *const text_ends[] = {"<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>", NULL};
    t->bos = named_id(t, g, "tokenizer.ggml.bos_token_id");
    t->eos = named_id(t, g, "tokenizer.ggml.eos_token_id");
    if (t->eos < 0)
        t->eos = first_control(t, text_ends);
    int32_t eot = named_id(t, g, "tokenizer.ggml.eot_token_id");
    tokenizer_add_stop(t, t->eos);
    tokenizer_add_stop(t, eot >= 0 ? eot : first_control(t, turn_ends));
    tokenizer_add_stop(t, named_id(t, g, "tokenizer.ggml.eom_token_id"));
    tokenizer_add_stop(t, first_control(t, text_ends));
    if (t->eos < 0 && t->n_stop_ids)
        t->eos = t->stop_ids[0];
    bool add_eos = false;
    gguf_bool(g, "tokenizer.ggml.add_bos_token", &add_bos);
    gguf_bool(g, "tokenizer.ggml.add_eos_token", &add_eos);
    if (add_bos && t->bos >= 0)
        t->before[t->n_before++] = t->bos;
    if (add_eos && t->eos >= 0)
        t->after[t->n_after++] = t->eos;
}

int tokenizer_load_gguf(struct tokenizer *t, const struct model_file *f, struct err *e)
{
    const struct gguf *g = f->gguf;
    size_t len;
    const char *model = gguf_str(g, "tokenizer.ggml.model", &len);
    if (!model)
        return err_set(e, ERR_NOT_FOUND,
                       "%s: there is no tokenizer (the key tokenizer.ggml.model is missing)", f->path);
    bool add_bos = false;
    int status;
    if (strcmp(model, "gpt2") == 0) {
        status = load_byte_level(t, g, &add_bos, e);
    } else if (strcmp(model, "llama") == 0) {
        add_bos = true;
        status = load_sentencepiece(t, g, e);
    } else {
        status = err_set(e, ERR_UNSUPPORTED,
                         "a tokenizer of the kind \"%.100s\" (tokenizer.ggml.model) is not supported", model);
    }
    if (status)
        return err_prefix(e, "%s", f->path);
    load_ends(t, g, add_bos);
    return 0;
}
