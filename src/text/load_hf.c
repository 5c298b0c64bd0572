/* A tokenizer from Hugging Face's tokenizer.json. The file describes a pipeline as data, so it is read as
 * data: each stage's "type" is looked up here, and one that we do not know is refused by its name, because
 * leaving it out would give other ids, silently. */
#include <string.h>

#include "text/private.h"

struct loader {
    struct tokenizer *t;
    struct err *e;
};

/* --- reading JSON --------------------------------------------------------------------------------- */

static const char *type_of(const json_t *stage)
{
    const char *type = json_string_value(json_object_get(stage, "type"));
    return type ? type : "";
}

static bool flag(const json_t *object, const char *key, bool otherwise)
{
    const json_t *v = json_object_get(object, key);
    return json_is_boolean(v) ? json_is_true(v) : otherwise;
}

static int unknown(struct loader *l, const char *what, const json_t *stage)
{
    if (!*type_of(stage))
        return err_set(l->e, ERR_INVALID, "%s has no \"type\"", what);
    return err_set(l->e, ERR_UNSUPPORTED, "%s of type \"%.100s\" is not supported", what, type_of(stage));
}

/* A string member, which may be empty but must be there. */
static int string_member(struct loader *l, const json_t *object, const char *key, const char **s, size_t *len)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_string(v))
        return err_set(l->e, ERR_INVALID, "\"%s\" of a \"%.100s\" must be a string", key, type_of(object));
    *s = json_string_value(v);
    *len = json_string_length(v);
    return 0;
}

/* "pattern": {"String": "x"} or {"Regex": "x"}. */
static int pattern_member(struct loader *l, const json_t *stage, const char **s, size_t *len, bool *is_regex)
{
    const json_t *pattern = json_object_get(stage, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex"), *string = json_object_get(pattern, "String");
    const json_t *v = regex ? regex : string;
    if (!json_is_string(v) || json_string_length(v) == 0)
        return err_set(l->e, ERR_INVALID,
                       "the pattern of a \"%.100s\" must be {\"String\": …} or {\"Regex\": …}, not empty",
                       type_of(stage));
    if (!regex && json_string_length(v) > REPLACE_MAX_BYTES)
        return err_set(l->e, ERR_UNSUPPORTED,
                       "the pattern of a \"%.100s\" is a string of %zu bytes; at most %d are possible",
                       type_of(stage), json_string_length(v), REPLACE_MAX_BYTES);
    *s = json_string_value(v);
    *len = json_string_length(v);
    *is_regex = regex != NULL;
    return 0;
}

/* Calls load for a stage, or for each member of a "Sequence" of them. */
static int each_stage(struct loader *l, const json_t *stage, const char *what, const char *members,
                      int (*load)(struct loader *l, const json_t *stage))
{
    if (!stage || json_is_null(stage))
        return 0;
    if (strcmp(type_of(stage), "Sequence") != 0)
        return load(l, stage);
    const json_t *list = json_object_get(stage, members);
    if (!json_is_array(list))
        return err_set(l->e, ERR_INVALID, "\"%s\" of a %s must be a list", members, what);
    size_t i;
    const json_t *member;
    json_array_foreach(list, i, member)
    {
        if (load(l, member))
            return -1;
    }
    return 0;
}

/* --- the model: vocabulary and merges ------------------------------------------------------------- */

static int load_vocab(struct loader *l, const json_t *vocab)
{
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return err_set(l->e, ERR_INVALID, "\"model.vocab\" must be an object of names and ids");
    const char *name;
    const json_t *id;
    json_object_foreach((json_t *)vocab, name, id)
    {
        if (!json_is_integer(id))
            return err_set(l->e, ERR_INVALID, "the id of \"%.100s\" in \"model.vocab\" must be an integer",
                           name);
        if (vocab_add(&l->t->vocab, json_integer_value(id), name, strlen(name), TOKEN_MODEL, l->e))
            return -1;
    }
    return 0;
}

/* "a b", or ["a", "b"]. */
static int merge_halves(const json_t *merge, const char *half[2], size_t len[2])
{
    if (json_is_string(merge)) {
        const char *s = json_string_value(merge), *space = strchr(s, ' ');
        if (!space || strchr(space + 1, ' '))
            return -1;
        half[0] = s;
        len[0] = (size_t)(space - s);
        half[1] = space + 1;
        len[1] = strlen(space + 1);
        return 0;
    }
    if (!json_is_array(merge) || json_array_size(merge) != 2)
        return -1;
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_array_get(merge, i);
        if (!json_is_string(v))
            return -1;
        half[i] = json_string_value(v);
        len[i] = json_string_length(v);
    }
    return 0;
}

static int load_merge(struct loader *l, size_t rank, const json_t *merge, struct str *scratch)
{
    const char *half[2];
    size_t len[2];
    int32_t ids[2];
    if (merge_halves(merge, half, len))
        return err_set(l->e, ERR_INVALID, "\"model.merges\"[%zu] must be \"a b\" or [\"a\", \"b\"]", rank);
    for (int i = 0; i < 2; i++) {
        ids[i] = vocab_find_model(&l->t->vocab, half[i], len[i]);
        if (ids[i] < 0)
            return err_set(l->e, ERR_INVALID,
                           "\"model.merges\"[%zu] names \"%.100s\", which is not in the vocabulary", rank,
                           half[i]);
    }
    if (!tokenizer_add_merge(l->t, ids[0], ids[1], (uint32_t)rank, scratch))
        return err_set(l->e, ERR_INVALID,
                       "\"model.merges\"[%zu] makes \"%.100s\", which is not in the vocabulary", rank,
                       scratch->data);
    return 0;
}

static int load_merges(struct loader *l, const json_t *merges)
{
    if (!json_is_array(merges))
        return err_set(l->e, ERR_INVALID, "\"model.merges\" must be a list");
    struct str scratch = {0};
    int status = 0;
    for (size_t rank = 0; rank < json_array_size(merges) && status == 0; rank++)
        status = load_merge(l, rank, json_array_get(merges, rank), &scratch);
    str_free(&scratch);
    return status;
}

/* Options of BPE that change ids and that no model served here uses. */
static int check_model(struct loader *l, const json_t *model)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(model, affixes[i]);
        if (json_is_string(affix) && json_string_length(affix))
            return err_set(l->e, ERR_UNSUPPORTED, "\"model.%s\" is not supported", affixes[i]);
    }
    if (json_number_value(json_object_get(model, "dropout")) > 0)
        return err_set(l->e, ERR_UNSUPPORTED, "\"model.dropout\" makes ids random and is not supported");
    return 0;
}

static int load_model(struct loader *l, const json_t *model)
{
    if (!json_is_object(model))
        return err_set(l->e, ERR_INVALID, "\"model\" is missing");
    /* Files of before 2020 have no type; those that can be served have merges. */
    if (json_object_get(model, "type") ? strcmp(type_of(model), "BPE") != 0
                                       : !json_object_get(model, "merges"))
        return unknown(l, "a model", model);
    struct bpe *b = &l->t->bpe;
    b->byte_fallback = flag(model, "byte_fallback", false);
    b->ignore_merges = flag(model, "ignore_merges", false);
    b->fuse_unk = flag(model, "fuse_unk", false);
    if (check_model(l, model) || load_vocab(l, json_object_get(model, "vocab")))
        return -1;
    const json_t *unk = json_object_get(model, "unk_token");
    if (json_is_string(unk))
        b->unk = vocab_find(&l->t->vocab, json_string_value(unk), json_string_length(unk));
    return 0;
}

/* --- added tokens --------------------------------------------------------------------------------- */

static int load_added_token(struct loader *l, size_t i, const json_t *token)
{
    const json_t *id = json_object_get(token, "id"), *content = json_object_get(token, "content");
    if (!json_is_integer(id) || !json_is_string(content))
        return err_set(l->e, ERR_INVALID,
                       "\"added_tokens\"[%zu] must have an integer \"id\" and a string \"content\"", i);
    if (json_integer_value(id) < 0 || json_integer_value(id) >= VOCAB_MAX_ID)
        return err_set(l->e, ERR_INVALID, "\"added_tokens\"[%zu] has id %lld, outside 0 … %d", i,
                       (long long)json_integer_value(id), VOCAB_MAX_ID - 1);
    struct added_token t = {
        .id = (int32_t)json_integer_value(id),
        .special = flag(token, "special", false),
        .single_word = flag(token, "single_word", false),
        .lstrip = flag(token, "lstrip", false),
        .rstrip = flag(token, "rstrip", false),
    };
    bool normalized = flag(token, "normalized", !t.special) && l->t->normalizer.n;
    if (tokenizer_add_token(l->t, json_string_value(content), json_string_length(content), t, normalized,
                            l->e))
        return err_prefix(l->e, "\"added_tokens\"[%zu]", i);
    return 0;
}

static int load_added_tokens(struct loader *l, const json_t *tokens)
{
    if (!tokens || json_is_null(tokens))
        return 0;
    if (!json_is_array(tokens))
        return err_set(l->e, ERR_INVALID, "\"added_tokens\" must be a list");
    for (size_t i = 0; i < json_array_size(tokens); i++)
        if (load_added_token(l, i, json_array_get(tokens, i)))
            return -1;
    return 0;
}

/* --- normalizer ----------------------------------------------------------------------------------- */

static int load_normalizer(struct loader *l, const json_t *stage)
{
    static const struct {
        const char *type;
        bool compose, compat;
    } forms[] = {{"NFC", true, false}, {"NFD", false, false}, {"NFKC", true, true}, {"NFKD", false, true}};
    struct normalizer *n = &l->t->normalizer;
    for (int i = 0; i < 4; i++) {
        if (strcmp(type_of(stage), forms[i].type) != 0)
            continue;
        struct normalize_step *s = normalizer_add(n, NORMALIZE_UNICODE, l->e);
        if (!s)
            return -1;
        s->compose = forms[i].compose;
        s->compat = forms[i].compat;
        return 0;
    }
    const char *text;
    size_t len;
    if (strcmp(type_of(stage), "Prepend") == 0) {
        struct normalize_step *s;
        if (string_member(l, stage, "prepend", &text, &len) ||
            !(s = normalizer_add(n, NORMALIZE_PREPEND, l->e)))
            return -1;
        str_add(&s->to, text, len);
        return 0;
    }
    if (strcmp(type_of(stage), "Replace") == 0) {
        struct normalize_step *s;
        bool is_regex;
        const char *from;
        size_t from_len;
        if (pattern_member(l, stage, &from, &from_len, &is_regex) ||
            string_member(l, stage, "content", &text, &len))
            return -1;
        if (is_regex)
            return err_set(l->e, ERR_UNSUPPORTED, "a normalizer that replaces by a Regex is not supported");
        if (!(s = normalizer_add(n, NORMALIZE_REPLACE, l->e)))
            return -1;
        str_add(&s->from, from, from_len);
        str_add(&s->to, text, len);
        return 0;
    }
    return unknown(l, "a normalizer", stage);
}

/* --- pre-tokenizer -------------------------------------------------------------------------------- */

static int load_split(struct loader *l, const json_t *stage)
{
    static const char *const behaviors[] = {
        [SPLIT_ISOLATED] = "Isolated",
        [SPLIT_REMOVED] = "Removed",
        [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const char *pattern, *behavior;
    size_t len, behavior_len;
    bool is_regex;
    if (pattern_member(l, stage, &pattern, &len, &is_regex) ||
        string_member(l, stage, "behavior", &behavior, &behavior_len))
        return -1;
    for (int i = 0; i <= SPLIT_CONTIGUOUS; i++) {
        if (strcmp(behavior, behaviors[i]) != 0)
            continue;
        struct split_step *s =
            pretokenizer_add(&l->t->pretokenizer, pattern, len, is_regex, (enum split_behavior)i, l->e);
        if (!s)
            return -1;
        s->invert = flag(stage, "invert", false);
        return 0;
    }
    return err_set(l->e, ERR_UNSUPPORTED, "a Split of behavior \"%.100s\" is not supported", behavior);
}

static int load_pretokenizer(struct loader *l, const json_t *stage)
{
    struct pretokenizer *p = &l->t->pretokenizer;
    if (l->t->bpe.byte_level)
        return err_set(l->e, ERR_UNSUPPORTED,
                       "a pre-tokenizer of type \"%.100s\" after ByteLevel is not supported", type_of(stage));
    if (strcmp(type_of(stage), "Split") == 0)
        return load_split(l, stage);
    if (strcmp(type_of(stage), "Digits") == 0) {
        bool each = flag(stage, "individual_digits", false);
        return pretokenizer_add(p, "\\p{N}", 5, true, each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, l->e) ? 0
                                                                                                      : -1;
    }
    if (strcmp(type_of(stage), "ByteLevel") == 0) {
        l->t->bpe.byte_level = true;
        bool cut = flag(stage, "use_regex", true), prefix_space = flag(stage, "add_prefix_space", true);
        if (!cut && !prefix_space)
            return 0;
        struct split_step *s = pretokenizer_add(p, cut ? gpt2_pattern : NULL, cut ? strlen(gpt2_pattern) : 0,
                                                true, SPLIT_ISOLATED, l->e);
        if (!s)
            return -1;
        s->prefix_space = prefix_space;
        return 0;
    }
    return unknown(l, "a pre-tokenizer", stage);
}

/* --- post-processor: BOS and EOS ------------------------------------------------------------------ */

static int add_around(struct loader *l, bool after, const json_t *special)
{
    int32_t *ids = after ? l->t->after : l->t->before;
    int *n = after ? &l->t->n_after : &l->t->n_before;
    const json_t *list = json_object_get(special, "ids");
    if (!json_is_array(list))
        return err_set(l->e, ERR_INVALID,
                       "a TemplateProcessing names a token that its \"special_tokens\" lack");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= l->t->vocab.n)
            return err_set(l->e, ERR_INVALID, "a TemplateProcessing adds an id outside the vocabulary");
        if (*n == MAX_AROUND)
            return err_set(l->e, ERR_UNSUPPORTED, "a TemplateProcessing adds more than %d tokens",
                           MAX_AROUND);
        ids[(*n)++] = (int32_t)json_integer_value(id);
    }
    return 0;
}

static int load_post_processor(struct loader *l, const json_t *stage)
{
    if (strcmp(type_of(stage), "ByteLevel") == 0)
        return 0; /* trims offsets, which we do not give */
    if (strcmp(type_of(stage), "TemplateProcessing") != 0)
        return unknown(l, "a post-processor", stage);
    const json_t *single = json_object_get(stage, "single"),
                 *specials = json_object_get(stage, "special_tokens");
    if (!json_is_array(single))
        return err_set(l->e, ERR_INVALID, "\"single\" of a TemplateProcessing must be a list");
    bool after = false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        if (json_object_get(item, "Sequence")) {
            after = true;
            continue;
        }
        const char *name = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        if (!name)
            return err_set(l->e, ERR_INVALID,
                           "\"single\"[%zu] of a TemplateProcessing is neither a Sequence nor a "
                           "SpecialToken",
                           i);
        if (add_around(l, after, json_object_get(specials, name)))
            return -1;
    }
    return 0;
}

/* --- decoder -------------------------------------------------------------------------------------- */

static int load_decoder(struct loader *l, const json_t *stage)
{
    struct decoder *d = &l->t->decoder;
    const char *text;
    size_t len;
    if (strcmp(type_of(stage), "ByteLevel") == 0) {
        d->byte_level = true;
        return 0;
    }
    if (strcmp(type_of(stage), "ByteFallback") == 0) {
        d->byte_fallback = true;
        return 0;
    }
    if (strcmp(type_of(stage), "Fuse") == 0)
        return 0; /* joins the tokens: here they are bytes of one text anyway */
    if (strcmp(type_of(stage), "Strip") == 0) {
        if (string_member(l, stage, "content", &text, &len))
            return -1;
        json_int_t start = json_integer_value(json_object_get(stage, "start"));
        json_int_t stop = json_integer_value(json_object_get(stage, "stop"));
        if (strcmp(text, " ") != 0 || start != 1 || stop != 0)
            return err_set(l->e, ERR_UNSUPPORTED,
                           "a decoder that strips anything but one leading space is not supported");
        d->strip_leading_space = true;
        return 0;
    }
    if (strcmp(type_of(stage), "Replace") == 0) {
        const char *from;
        size_t from_len;
        bool is_regex;
        if (pattern_member(l, stage, &from, &from_len, &is_regex) ||
            string_member(l, stage, "content", &text, &len))
            return -1;
        if (is_regex || d->n_replace == (int)(sizeof d->replace / sizeof d->replace[0]))
            return err_set(l->e, ERR_UNSUPPORTED,
                           "a decoder that replaces by a Regex, or more than %zu strings, is not "
                           "supported",
                           sizeof d->replace / sizeof d->replace[0]);
        struct decoder_replace *r = &d->replace[d->n_replace++];
        str_add(&r->from, from, from_len);
        str_add(&r->to, text, len);
        return 0;
    }
    return unknown(l, "a decoder", stage);
}

/* --- what the other files of the directory say ---------------------------------------------------- */

/* A token named by tokenizer_config.json: a string, or an object with "content". */
static int32_t configured_token(const struct loader *l, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v))
        v = json_object_get(v, "content");
    return json_is_string(v) ? vocab_find(&l->t->vocab, json_string_value(v), json_string_length(v)) : -1;
}

/* An id, or a list of them. */
static void add_stops(struct loader *l, const json_t *ids)
{
    if (json_is_integer(ids))
        tokenizer_add_stop(l->t, json_integer_value(ids));
    for (size_t i = 0; i < json_array_size(ids); i++)
        add_stops(l, json_array_get(ids, i));
}

static void load_ends(struct loader *l, const struct model_file *f)
{
    struct tokenizer *t = l->t;
    t->bos = configured_token(l, f->tokenizer_config, "bos_token");
    t->eos = configured_token(l, f->tokenizer_config, "eos_token");
    const json_t *configs[] = {f->generation_config, f->config, json_object_get(f->config, "text_config")};
    if (t->eos >= 0)
        tokenizer_add_stop(t, t->eos);
    for (int i = 0; i < 3; i++)
        add_stops(l, json_object_get(configs[i], "eos_token_id"));
    if (t->eos < 0 && t->n_stop_ids)
        t->eos = t->stop_ids[0];
    for (int i = 0; i < 3 && t->bos < 0; i++) {
        const json_t *id = json_object_get(configs[i], "bos_token_id");
        if (json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < t->vocab.n)
            t->bos = (int32_t)json_integer_value(id);
    }
    /* Some files leave BOS to the tokenizer's class, whose flag then is in tokenizer_config.json. */
    if (t->n_before == 0 && t->bos >= 0 && flag(f->tokenizer_config, "add_bos_token", false))
        t->before[t->n_before++] = t->bos;
    if (t->n_after == 0 && t->eos >= 0 && flag(f->tokenizer_config, "add_eos_token", false))
        t->after[t->n_after++] = t->eos;
}

int tokenizer_load_hf(struct tokenizer *t, const struct model_file *f, struct err *e)
{
    if (!f->tokenizer)
        return err_set(e, ERR_NOT_FOUND, "%s: there is no tokenizer.json", f->path);
    struct loader l = {t, e};
    const json_t *root = f->tokenizer, *model = json_object_get(root, "model");
    /* Added tokens come before merges, which must know what is special, and after the normalizer, which
     * theirs pass through. */
    if (load_model(&l, model) ||
        each_stage(&l, json_object_get(root, "normalizer"), "normalizer", "normalizers", load_normalizer) ||
        load_added_tokens(&l, json_object_get(root, "added_tokens")) ||
        load_merges(&l, json_object_get(model, "merges")) ||
        each_stage(&l, json_object_get(root, "pre_tokenizer"), "pre-tokenizer", "pretokenizers",
                   load_pretokenizer) ||
        each_stage(&l, json_object_get(root, "post_processor"), "post-processor", "processors",
                   load_post_processor) ||
        each_stage(&l, json_object_get(root, "decoder"), "decoder", "decoders", load_decoder))
        return err_prefix(e, "%s/tokenizer.json", f->path);
    if (t->bpe.byte_level)
        t->decoder.byte_level = true;
    load_ends(&l, f);
    return 0;
}
