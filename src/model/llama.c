/* The Llama family: pre-norm decoder layers of grouped-query attention with rotary positions and a gated
 * SiLU MLP. Three members differ in one thing each:
 *   llama (Llama 2/3, SmolLM2)   the plain form; GGUF files permute the rows of q and k
 *   qwen2 (Qwen2, Qwen2.5)       biases on q, k, v
 *   qwen3                        RMS norm over each head of q and k before rope
 *
 *   x += o(attention(rope(q h), rope(k h), v h)),  h = rmsnorm(x)
 *   x += down(silu(gate h) * up h),                h = rmsnorm(x)
 *   logits = head(rmsnorm(x)) */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "model/arch.h"
#include "model/layers.h"
#include "model/rotary.h"
#include "model/scratch.h"
#include "model/weights.h"

struct llama_layer {
    struct mat *q, *k, *v, *o;
    float *q_bias, *k_bias, *v_bias, *o_bias; /* NULL where the checkpoint has none */
    float *attn_norm, *ffn_norm;              /* [hidden] */
    float *q_norm, *k_norm;                   /* [head_dim]; Qwen3 only */
    struct mlp mlp;
};

struct llama {
    struct rope rope;
    struct llama_layer *layers; /* [n_layers] */
    struct ends ends;

    /* activations; T = tokens of the step */
    float *x, *h;   /* [T, hidden] */
    float *q, *att; /* [T, n_heads, head_dim] */
    float *k, *v;   /* [T, n_kv_heads, head_dim] */
    struct mlp_buffers mlp;
};

static int llama_configure(struct model *m, const struct params *p, struct err *e)
{
    struct model_config *c = &m->config;
    struct llama *l = m->priv;
    bool window = false;
    float partial = 1;
    if (decoder_config(m, p, "hidden_act", "silu", e) ||
        params_bool(p, "use_sliding_window", NULL, &window, e) ||
        params_float(p, "partial_rotary_factor", NULL, false, 0, 1, &partial, e))
        return -1;
    if (window)
        return err_set(e, ERR_UNSUPPORTED, "%s/config.json: use_sliding_window is not supported",
                       p->file->path);
    int rope_dims = (int)((float)c->head_dim * partial);
    if (params_int(p, NULL, "rope.dimension_count", false, 2, c->head_dim, &rope_dims, e))
        return -1;
    l->layers = mem_zalloc((size_t)c->n_layers, sizeof *l->layers);
    return rotary_read(p, rope_dims, &l->rope, e);
}

/* llama GGUFs store each q/k head's rows for interleaved rope: file row 2i+j holds row j*(d/2)+i. Undoing it
 * at load leaves one kind of rope. [heads * d], caller frees. */
static int32_t *unpermuted_rows(int heads, int d)
{
    int32_t *map = mem_alloc((size_t)heads * (size_t)d * sizeof *map);
    for (int h = 0; h < heads; h++)
        for (int j = 0; j < 2; j++)
            for (int i = 0; i < d / 2; i++)
                map[h * d + j * (d / 2) + i] = h * d + 2 * i + j;
    return map;
}

static int layer_weights(struct model *m, struct weights *w, struct llama_layer *l, const int32_t *q_rows,
                         const int32_t *k_rows, struct err *e)
{
    const struct model_config *c = &m->config;
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    int bias = m->arch == &arch_qwen2 ? 0 : WEIGHT_OPTIONAL;

#define NAME(hf, gguf) ((struct weight_name){hf, gguf})
    if (weights_vec(w, NAME(".input_layernorm.weight", ".attn_norm.weight"), 0, c->hidden, 0, NULL,
                    &l->attn_norm, e) ||
        weights_mat(w, NAME(".self_attn.q_proj.weight", ".attn_q.weight"), 0, q, c->hidden, q_rows, &l->q,
                    e) ||
        weights_mat(w, NAME(".self_attn.k_proj.weight", ".attn_k.weight"), 0, kv, c->hidden, k_rows, &l->k,
                    e) ||
        weights_mat(w, NAME(".self_attn.v_proj.weight", ".attn_v.weight"), 0, kv, c->hidden, NULL, &l->v,
                    e) ||
        weights_mat(w, NAME(".self_attn.o_proj.weight", ".attn_output.weight"), 0, c->hidden, q, NULL, &l->o,
                    e) ||
        weights_vec(w, NAME(".self_attn.q_proj.bias", ".attn_q.bias"), bias, q, 0, q_rows, &l->q_bias, e) ||
        weights_vec(w, NAME(".self_attn.k_proj.bias", ".attn_k.bias"), bias, kv, 0, k_rows, &l->k_bias, e) ||
        weights_vec(w, NAME(".self_attn.v_proj.bias", ".attn_v.bias"), bias, kv, 0, NULL, &l->v_bias, e) ||
        weights_vec(w, NAME(".self_attn.o_proj.bias", ".attn_output.bias"), WEIGHT_OPTIONAL, c->hidden, 0,
                    NULL, &l->o_bias, e) ||
        weights_vec(w, NAME(".post_attention_layernorm.weight", ".ffn_norm.weight"), 0, c->hidden, 0, NULL,
                    &l->ffn_norm, e))
        return -1;
    if (m->arch == &arch_qwen3 && (weights_vec(w, NAME(".self_attn.q_norm.weight", ".attn_q_norm.weight"), 0,
                                               c->head_dim, 0, NULL, &l->q_norm, e) ||
                                   weights_vec(w, NAME(".self_attn.k_norm.weight", ".attn_k_norm.weight"), 0,
                                               c->head_dim, 0, NULL, &l->k_norm, e)))
        return -1;
#undef NAME
    return mlp_weights(m, w, &l->mlp, e);
}

static int llama_weights(struct model *m, struct weights *w, struct err *e)
{
    const struct model_config *c = &m->config;
    struct llama *l = m->priv;
    bool permuted = m->arch == &arch_llama && m->file->kind == MODEL_FILE_GGUF;
    int32_t *q_rows = permuted ? unpermuted_rows(c->n_heads, c->head_dim) : NULL;
    int32_t *k_rows = permuted ? unpermuted_rows(c->n_kv_heads, c->head_dim) : NULL;
    int rc = ends_weights(m, w, 0, &l->ends, e);
    for (int i = 0; i < c->n_layers && rc == 0; i++) {
        weights_layer(w, "model.layers", i, "blk", i);
        rc = layer_weights(m, w, &l->layers[i], q_rows, k_rows, e);
    }
    free(q_rows);
    free(k_rows);
    return rc;
}

static void llama_buffers(struct model *m, struct scratch *s, int max_tokens, int max_logits)
{
    const struct model_config *c = &m->config;
    struct llama *l = m->priv;
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    l->x = scratch_floats(s, max_tokens, c->hidden);
    l->h = scratch_floats(s, max_tokens, c->hidden);
    ends_buffers(m, s, max_logits, &l->ends);

    size_t mark = s->at; /* attention and MLP are never at work at the same time */
    l->q = scratch_floats(s, max_tokens, q);
    l->att = scratch_floats(s, max_tokens, q);
    l->k = scratch_floats(s, max_tokens, kv);
    l->v = scratch_floats(s, max_tokens, kv);
    scratch_reuse(s, mark);
    mlp_buffers(m, s, max_tokens, &l->mlp);
}

static void attention_block(struct model *m, const struct step *s, int i)
{
    const struct model_config *c = &m->config;
    struct backend *b = m->b;
    const struct backend_ops *op = b->ops;
    struct llama *l = m->priv;
    const struct llama_layer *w = &l->layers[i];
    int n = s->batch->n_tokens, q_dim = c->n_heads * c->head_dim, kv_dim = c->n_kv_heads * c->head_dim;
    size_t d = (size_t)c->head_dim;

    op->rmsnorm(b, l->x, (size_t)c->hidden, w->attn_norm, c->eps, n, c->hidden, l->h, (size_t)c->hidden);
    struct mat_use qkv[] = {{.w = w->q, .bias = w->q_bias, .out = l->q},
                            {.w = w->k, .bias = w->k_bias, .out = l->k},
                            {.w = w->v, .bias = w->v_bias, .out = l->v}};
    op->matmul(b, l->h, n, qkv, 3);
    model_show(m, "q_proj", i, l->q, n, q_dim);
    model_show(m, "k_proj", i, l->k, n, kv_dim);
    model_show(m, "v_proj", i, l->v, n, kv_dim);
    if (w->q_norm) {
        op->rmsnorm(b, l->q, d, w->q_norm, c->eps, (int64_t)n * c->n_heads, c->head_dim, l->q, d);
        op->rmsnorm(b, l->k, d, w->k_norm, c->eps, (int64_t)n * c->n_kv_heads, c->head_dim, l->k, d);
        model_show(m, "q_norm", i, l->q, n, q_dim);
        model_show(m, "k_norm", i, l->k, n, kv_dim);
    }
    op->rope(b, l->q, (size_t)q_dim, c->n_heads, c->head_dim, &l->rope, s->batch->positions, n);
    op->rope(b, l->k, (size_t)kv_dim, c->n_kv_heads, c->head_dim, &l->rope, s->batch->positions, n);
    op->kv_write(b, s->kv, i, l->k, l->v, s->batch);
    struct attention att = {.q = l->q,
                            .out = l->att,
                            .layer = i,
                            .n_heads = c->n_heads,
                            .scale = 1.0f / sqrtf((float)c->head_dim)};
    op->attention(b, s->kv, &att, s->batch);
    model_show(m, "o_proj_input", i, l->att, n, q_dim);
    struct mat_use o = {.w = w->o, .bias = w->o_bias, .out = l->x, .add = true};
    op->matmul(b, l->att, n, &o, 1);
}

static void llama_step(struct model *m, const struct step *s)
{
    const struct model_config *c = &m->config;
    struct llama *l = m->priv;
    struct backend *b = m->b;
    int n = s->batch->n_tokens;
    size_t hidden = (size_t)c->hidden;
    b->ops->embed(b, l->ends.embed, s->batch->tokens, n, 1.0f, l->x);
    model_show(m, "embed", -1, l->x, n, c->hidden);
    for (int i = 0; i < c->n_layers; i++) {
        attention_block(m, s, i);
        b->ops->rmsnorm(b, l->x, hidden, l->layers[i].ffn_norm, c->eps, n, c->hidden, l->h, hidden);
        mlp_step(m, &l->layers[i].mlp, &l->mlp, n, l->h, false, l->x, true);
        model_show(m, "layer", i, l->x, n, c->hidden);
    }
    ends_logits(m, s, l->x, &l->ends);
}

static void llama_release(struct model *m)
{
    struct llama *l = m->priv;
    rotary_free(&l->rope);
    free(l->layers);
    ends_release(&l->ends);
}

#define FAMILY(id, gguf, ...)                                 \
    const struct arch arch_##id = {                           \
        .name = #id,                                          \
        .gguf_names = (const char *const[]){gguf, NULL},      \
        .hf_names = (const char *const[]){__VA_ARGS__, NULL}, \
        .priv_bytes = sizeof(struct llama),                   \
        .configure = llama_configure,                         \
        .weights = llama_weights,                             \
        .buffers = llama_buffers,                             \
        .step = llama_step,                                   \
        .release = llama_release,                             \
    }

FAMILY(llama, "llama", "LlamaForCausalLM");
FAMILY(qwen2, "qwen2", "Qwen2ForCausalLM");
FAMILY(qwen3, "qwen3", "Qwen3ForCausalLM");
