/* Opening a model: find the architecture by the name in the file, let it configure itself, plan and load. */
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "file/gguf.h"
#include "model/arch.h"
#include "model/scratch.h"
#include "model/weights.h"

/* One row an architecture. */
static const struct arch *const archs[] = {&arch_llama, &arch_qwen2, &arch_qwen3, &arch_qwen35, &arch_gemma3};
enum { N_ARCHS = sizeof archs / sizeof archs[0] };

static bool listed(const char *const *names, const char *name)
{
    for (; *names; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

/* The architecture's name in the file (owned by it); NULL and *e if it does not say. */
static const char *declared_arch(const struct model_file *f, struct err *e)
{
    if (f->kind == MODEL_FILE_GGUF) {
        const char *name = gguf_str(f->gguf, "general.architecture", NULL);
        if (!name)
            err_set(e, ERR_INVALID, "%s: metadata key \"general.architecture\" is missing or not a string",
                    f->path);
        return name;
    }
    const char *name = json_string_value(json_array_get(json_object_get(f->config, "architectures"), 0));
    if (!name)
        err_set(e, ERR_INVALID, "%s/config.json: \"architectures\" must be a list with one name", f->path);
    return name;
}

static const struct arch *find_arch(const struct model_file *f, const char *name, struct err *e)
{
    bool hf = f->kind == MODEL_FILE_HF;
    for (int i = 0; i < N_ARCHS; i++)
        if (listed(hf ? archs[i]->hf_names : archs[i]->gguf_names, name))
            return archs[i];
    struct str known = {0};
    for (int i = 0; i < N_ARCHS; i++)
        for (const char *const *names = hf ? archs[i]->hf_names : archs[i]->gguf_names; *names; names++)
            str_addf(&known, "%s%s", known.len ? ", " : "", *names);
    err_set(e, ERR_UNSUPPORTED, "%s: architecture \"%.100s\" is not one this build knows (it knows %s)",
            f->path, name, str_text(&known));
    str_free(&known);
    return NULL;
}

/* "model." unless the checkpoint keeps its text model deeper, as multimodal ones do. */
static const char *hf_prefix(const struct model_file *f)
{
    static const char *const prefixes[] = {"model.language_model.", "language_model.model."};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        char name[100];
        snprintf(name, sizeof name, "%sembed_tokens.weight", prefixes[i]);
        if (model_file_tensor(f, name))
            return prefixes[i];
    }
    return "model.";
}

static int declare_weights(struct model *m, struct weights *w, struct err *e)
{
    w->m = m;
    w->hf_prefix = hf_prefix(m->file);
    int rc = m->arch->weights(m, w, e);
    if (rc == 0 && w->load) {
        char drafting[32]; /* GGUF: the MTP block follows the trunk */
        snprintf(drafting, sizeof drafting, "blk.%d.", m->config.n_layers);
        const char *const ignored[] = {"model.visual.",
                                       "model.vision_tower.",
                                       "vision_tower.",
                                       "model.multi_modal_projector.",
                                       "multi_modal_projector.",
                                       "mtp.",
                                       "rope_freqs.",
                                       m->arch->draft ? drafting : NULL,
                                       NULL};
        weights_warn_unused(w, ignored);
    }
    free(w->used);
    return rc;
}

struct model *model_open(const struct model_file *file, struct backend *b, unsigned flags, struct err *e)
{
    const char *name = declared_arch(file, e);
    const struct arch *arch = name ? find_arch(file, name, e) : NULL;
    if (!arch)
        return NULL;
    struct model *m = mem_zalloc(1, sizeof *m);
    *m = (struct model){.arch = arch,
                        .file = file,
                        .b = b,
                        .quantization = (int)(flags >> 8) - 1,
                        .want_mtp = flags & MODEL_MTP,
                        .state_dtype = flags & MODEL_STATE_BF16 ? DT_BF16 : DT_F32,
                        .conv_dtype = flags & MODEL_CONV_BF16 ? DT_BF16 : DT_F32,
                        .priv = mem_zalloc(1, arch->priv_bytes)};
    struct params p = {.file = file, .prefix = name};
    if (file->kind == MODEL_FILE_HF) {
        const json_t *text = json_object_get(file->config, "text_config");
        p.root = file->config;
        p.config = json_is_object(text) ? text : file->config;
    }
    struct weights plan = {0};
    if (arch->configure(m, &p, e) || declare_weights(m, &plan, e)) {
        model_free(m);
        return NULL;
    }
    return m;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->n_mats; i++) {
        m->b->ops->mat_free(m->b, m->mats[i].w);
        free(m->mats[i].name);
    }
    for (int i = 0; i < m->n_buffers; i++)
        m->b->ops->release(m->b, m->buffers[i].p, m->buffers[i].bytes);
    if (m->arch->release)
        m->arch->release(m);
    free(m->mats);
    free(m->buffers);
    free(m->priv);
    free(m);
}

void *model_buffer(struct model *m, size_t bytes, struct err *e)
{
    void *p = m->b->ops->alloc(m->b, bytes, e);
    if (!p)
        return NULL;
    if (m->n_buffers == m->cap_buffers) {
        m->cap_buffers = m->cap_buffers ? 2 * m->cap_buffers : 256;
        m->buffers = mem_realloc(m->buffers, (size_t)m->cap_buffers, sizeof *m->buffers);
    }
    m->buffers[m->n_buffers++] = (struct owned_buffer){p, bytes};
    return p;
}

int model_load(struct model *m, void (*progress)(void *arg, size_t done, size_t total), void *arg,
               struct err *e)
{
    struct weights w = {.load = true, .total = m->weight_bytes, .progress = progress, .progress_arg = arg};
    int rc = declare_weights(m, &w, e);
    m->file = NULL;
    return rc;
}

size_t model_scratch_bytes(const struct model *m, int max_tokens, int max_logits)
{
    struct scratch s = {.m = (struct model *)m};
    m->arch->buffers((struct model *)m, &s, max_tokens, max_logits);
    return s.most + m->b->ops->scratch_bytes(m->b, max_tokens, m->config.max_cols);
}

int model_reserve(struct model *m, int max_tokens, int max_logits, struct err *e)
{
    struct scratch sum = {.m = m};
    m->arch->buffers(m, &sum, max_tokens, max_logits);
    struct scratch s = {.m = m, .base = model_buffer(m, sum.most, e)};
    if (!s.base)
        return -1;
    m->arch->buffers(m, &s, max_tokens, max_logits);
    return m->b->ops->reserve(m->b, max_tokens, m->config.max_cols, e);
}

void model_step(struct model *m, const struct step *s)
{
    m->arch->step(m, s);
}

const float *model_hidden(const struct model *m)
{
    return m->arch->hidden ? m->arch->hidden(m) : NULL;
}

bool model_has_mtp(const struct model *m)
{
    return m->has_mtp;
}

void model_draft(struct model *m, const struct step *s, const float *hidden, float *out)
{
    m->arch->draft(m, s, hidden, out);
}

void model_set_probe(struct model *m, model_probe *probe, void *arg)
{
    m->probe = probe;
    m->probe_arg = arg;
}

void model_each_mat(const struct model *m, void (*fn)(void *arg, const char *name, const struct mat *w),
                    void *arg)
{
    for (int i = 0; i < m->n_mats; i++)
        if (m->mats[i].streamed)
            fn(arg, m->mats[i].name, m->mats[i].w);
}

const char *model_arch(const struct model *m)
{
    return m->arch->name;
}

const struct model_config *model_config(const struct model *m)
{
    return &m->config;
}

size_t model_kv_token_bytes(const struct model_config *c, enum dtype dtype)
{
    return 2 * (size_t)c->n_kv_layers * (size_t)c->n_kv_heads * kv_row_bytes(dtype, c->head_dim);
}

struct kv_cache model_kv_cache(const struct model_config *c, enum dtype dtype, int n_blocks, int block_size)
{
    return (struct kv_cache){.dtype = dtype,
                             .n_layers = c->n_kv_layers,
                             .n_blocks = n_blocks,
                             .block_size = block_size,
                             .n_kv_heads = c->n_kv_heads,
                             .head_dim = c->head_dim};
}

int64_t model_params(const struct model *m)
{
    return m->n_params;
}

size_t model_weight_bytes(const struct model *m)
{
    return m->weight_bytes;
}

size_t model_stream_bytes(const struct model *m)
{
    return m->stream_bytes;
}
