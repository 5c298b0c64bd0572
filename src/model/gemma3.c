/* Gemma 3 (text): most layers see only a sliding window of the last positions, with a rotary base of their
 * own; every few layers one sees everything. Each block is normed on both sides.
 *
 *   x = embed * sqrt(hidden)
 *   x += norm(o(attention(rope(norm(q h)), rope(norm(k h)), v h))),  h = norm(x);  scores /
 * sqrt(query_pre_attn_scalar) x += norm(down(gelu(gate h) * up h)),                            h = norm(x)
 *
 * All norms are zero-centred in Hugging Face files (weights w mean 1 + w), plain in GGUF. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/arch.h"
#include "model/layers.h"
#include "model/rotary.h"
#include "model/scratch.h"
#include "model/weights.h"

struct gemma3_layer {
    bool sliding;
    struct mat *q, *k, *v, *o;
    float *q_norm, *k_norm;                                       /* [head_dim] */
    float *attn_norm, *attn_post_norm, *ffn_norm, *ffn_post_norm; /* [hidden] */
    struct mlp mlp;
};

struct gemma3 {
    struct rope full, local; /* of full and sliding layers */
    int window;
    float scale; /* on q·k */
    float norm_plus;
    struct gemma3_layer *layers; /* [n_layers] */
    struct ends ends;

    /* activations; T = tokens of the step */
    float *x, *h, *y; /* [T, hidden] */
    float *q, *att;   /* [T, n_heads, head_dim] */
    float *k, *v;     /* [T, n_kv_heads, head_dim] */
    struct mlp_buffers mlp;
};

/* Which layers slide: layer_types, else all but every sliding_window_pattern-th. */
static int read_layer_kinds(struct model *m, const struct params *p, struct err *e)
{
    struct gemma3 *l = m->priv;
    int n = m->config.n_layers, pattern = 6;
    if (params_int(p, "_sliding_window_pattern", "attention.sliding_window_pattern", false, 1, 1024, &pattern,
                   e) ||
        params_int(p, "sliding_window_pattern", NULL, false, 1, 1024, &pattern, e))
        return -1;
    const json_t *types = json_object_get(p->config, "layer_types");
    if (types && (!json_is_array(types) || (int)json_array_size(types) != n))
        return err_set(e, ERR_INVALID, "%s/config.json: \"layer_types\" must list %d layers", p->file->path,
                       n);
    for (int i = 0; i < n; i++) {
        l->layers[i].sliding = (i + 1) % pattern != 0;
        if (!types)
            continue;
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (!type || (strcmp(type, "full_attention") != 0 && strcmp(type, "sliding_attention") != 0))
            return err_set(e, ERR_UNSUPPORTED,
                           "%s/config.json: layer_types[%d] is \"%.60s\"; full_attention and "
                           "sliding_attention are supported",
                           p->file->path, i, type ? type : "?");
        l->layers[i].sliding = strcmp(type, "sliding_attention") == 0;
    }
    return 0;
}

static int refuse_unsupported(const struct params *p, struct err *e)
{
    float cap = 0;
    bool bidirectional = false, bias = false;
    if (params_float(p, "final_logit_softcapping", "final_logit_softcapping", false, 0, 1e9, &cap, e) ||
        params_float(p, "attn_logit_softcapping", "attn_logit_softcapping", false, 0, 1e9, &cap, e) ||
        params_bool(p, "use_bidirectional_attention", NULL, &bidirectional, e) ||
        params_bool(p, "attention_bias", NULL, &bias, e))
        return -1;
    if (cap > 0)
        return err_set(e, ERR_UNSUPPORTED, "%s: soft-capped logits are not supported", p->file->path);
    if (bidirectional)
        return err_set(e, ERR_UNSUPPORTED, "%s: use_bidirectional_attention is not supported", p->file->path);
    if (bias)
        return err_set(e, ERR_UNSUPPORTED, "%s: attention_bias is not supported", p->file->path);
    return 0;
}

static int gemma3_configure(struct model *m, const struct params *p, struct err *e)
{
    struct model_config *c = &m->config;
    struct gemma3 *l = m->priv;
    c->tied = true; /* the default of this family's config.json */
    if (decoder_config(m, p, "hidden_activation", "gelu_pytorch_tanh", e) || refuse_unsupported(p, e))
        return -1;
    float pre_scale = (float)c->head_dim, base = 10000;
    if (params_float(p, "query_pre_attn_scalar", NULL, false, 1e-3, 1e6, &pre_scale, e) ||
        params_float(p, "rope_local_base_freq", "rope.freq_base_swa", false, 1, 1e12, &base, e) ||
        params_int(p, "sliding_window", "attention.sliding_window", true, 1, 1 << 27, &l->window, e))
        return -1;
    const json_t *local = json_object_get(
        json_object_get(json_object_get(p->config, "rope_parameters"), "sliding_attention"), "rope_theta");
    if (local)
        base = (float)json_number_value(local);
    if (!(base >= 1))
        return err_set(e, ERR_INVALID,
                       "%s/config.json: rope_theta of sliding_attention must be a number of at least 1",
                       p->file->path);
    l->scale = 1.0f / sqrtf(pre_scale);
    l->norm_plus = p->config ? 1 : 0;
    l->layers = mem_zalloc((size_t)c->n_layers, sizeof *l->layers);
    if (read_layer_kinds(m, p, e))
        return -1;
    rotary_plain(base, c->head_dim, &l->local);
    return rotary_read(p, c->head_dim, &l->full, e);
}

static int layer_weights(struct model *m, struct weights *w, struct gemma3_layer *l, struct err *e)
{
    const struct model_config *c = &m->config;
    float plus = ((struct gemma3 *)m->priv)->norm_plus;
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, d = c->head_dim;
    const struct {
        struct weight_name name;
        int n;
        float **out;
    } vecs[] = {
        {{".input_layernorm.weight", ".attn_norm.weight"}, c->hidden, &l->attn_norm},
        {{".post_attention_layernorm.weight", ".post_attention_norm.weight"}, c->hidden, &l->attn_post_norm},
        {{".pre_feedforward_layernorm.weight", ".ffn_norm.weight"}, c->hidden, &l->ffn_norm},
        {{".post_feedforward_layernorm.weight", ".post_ffw_norm.weight"}, c->hidden, &l->ffn_post_norm},
        {{".self_attn.q_norm.weight", ".attn_q_norm.weight"}, d, &l->q_norm},
        {{".self_attn.k_norm.weight", ".attn_k_norm.weight"}, d, &l->k_norm},
    };
    const struct {
        struct weight_name name;
        int rows, cols;
        struct mat **out;
    } mats[] = {
        {{".self_attn.q_proj.weight", ".attn_q.weight"}, q, c->hidden, &l->q},
        {{".self_attn.k_proj.weight", ".attn_k.weight"}, kv, c->hidden, &l->k},
        {{".self_attn.v_proj.weight", ".attn_v.weight"}, kv, c->hidden, &l->v},
        {{".self_attn.o_proj.weight", ".attn_output.weight"}, c->hidden, q, &l->o},
    };
    for (size_t i = 0; i < sizeof vecs / sizeof vecs[0]; i++)
        if (weights_vec(w, vecs[i].name, 0, vecs[i].n, plus, NULL, vecs[i].out, e))
            return -1;
    for (size_t i = 0; i < sizeof mats / sizeof mats[0]; i++)
        if (weights_mat(w, mats[i].name, 0, mats[i].rows, mats[i].cols, NULL, mats[i].out, e))
            return -1;
    return mlp_weights(m, w, &l->mlp, e);
}

static int gemma3_weights(struct model *m, struct weights *w, struct err *e)
{
    struct gemma3 *l = m->priv;
    int rc = ends_weights(m, w, l->norm_plus, &l->ends, e);
    for (int i = 0; i < m->config.n_layers && rc == 0; i++) {
        weights_layer(w, "model.layers", i, "blk", i);
        rc = layer_weights(m, w, &l->layers[i], e);
    }
    return rc;
}

static void gemma3_buffers(struct model *m, struct scratch *s, int max_tokens, int max_logits)
{
    const struct model_config *c = &m->config;
    struct gemma3 *l = m->priv;
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    l->x = scratch_floats(s, max_tokens, c->hidden);
    l->h = scratch_floats(s, max_tokens, c->hidden);
    l->y = scratch_floats(s, max_tokens, c->hidden);
    ends_buffers(m, s, max_logits, &l->ends);

    size_t mark = s->at; /* attention and MLP are never at work at the same time */
    l->q = scratch_floats(s, max_tokens, q);
    l->att = scratch_floats(s, max_tokens, q);
    l->k = scratch_floats(s, max_tokens, kv);
    l->v = scratch_floats(s, max_tokens, kv);
    scratch_reuse(s, mark);
    mlp_buffers(m, s, max_tokens, &l->mlp);
}

/* y = o(attention(h)) */
static void attention_block(struct model *m, const struct step *s, int i)
{
    const struct model_config *c = &m->config;
    struct gemma3 *l = m->priv;
    const struct gemma3_layer *w = &l->layers[i];
    struct backend *b = m->b;
    const struct backend_ops *op = b->ops;
    const struct rope *rope = w->sliding ? &l->local : &l->full;
    int n = s->batch->n_tokens, q_dim = c->n_heads * c->head_dim, kv_dim = c->n_kv_heads * c->head_dim;
    size_t d = (size_t)c->head_dim;

    struct mat_use qkv[] = {{.w = w->q, .out = l->q}, {.w = w->k, .out = l->k}, {.w = w->v, .out = l->v}};
    op->matmul(b, l->h, n, qkv, 3);
    model_show(m, "q_proj", i, l->q, n, q_dim);
    model_show(m, "k_proj", i, l->k, n, kv_dim);
    model_show(m, "v_proj", i, l->v, n, kv_dim);
    op->rmsnorm(b, l->q, d, w->q_norm, c->eps, (int64_t)n * c->n_heads, c->head_dim, l->q, d);
    op->rmsnorm(b, l->k, d, w->k_norm, c->eps, (int64_t)n * c->n_kv_heads, c->head_dim, l->k, d);
    op->rope(b, l->q, (size_t)q_dim, c->n_heads, c->head_dim, rope, s->batch->positions, n);
    op->rope(b, l->k, (size_t)kv_dim, c->n_kv_heads, c->head_dim, rope, s->batch->positions, n);
    op->kv_write(b, s->kv, i, l->k, l->v, s->batch);
    struct attention att = {.q = l->q,
                            .out = l->att,
                            .layer = i,
                            .n_heads = c->n_heads,
                            .scale = l->scale,
                            .window = w->sliding ? l->window : 0};
    op->attention(b, s->kv, &att, s->batch);
    model_show(m, "o_proj_input", i, l->att, n, q_dim);
    struct mat_use o = {.w = w->o, .out = l->y};
    op->matmul(b, l->att, n, &o, 1);
}

static void gemma3_step(struct model *m, const struct step *s)
{
    const struct model_config *c = &m->config;
    struct gemma3 *l = m->priv;
    struct backend *b = m->b;
    const struct backend_ops *op = b->ops;
    int n = s->batch->n_tokens;
    size_t hidden = (size_t)c->hidden;
    int64_t count = (int64_t)n * c->hidden;
    op->embed(b, l->ends.embed, s->batch->tokens, n, sqrtf((float)c->hidden), l->x);
    model_show(m, "embed", -1, l->x, n, c->hidden);
    for (int i = 0; i < c->n_layers; i++) {
        const struct gemma3_layer *w = &l->layers[i];
        op->rmsnorm(b, l->x, hidden, w->attn_norm, c->eps, n, c->hidden, l->h, hidden);
        attention_block(m, s, i);
        op->rmsnorm(b, l->y, hidden, w->attn_post_norm, c->eps, n, c->hidden, l->y, hidden);
        op->add(b, l->x, l->y, count);
        op->rmsnorm(b, l->x, hidden, w->ffn_norm, c->eps, n, c->hidden, l->h, hidden);
        mlp_step(m, &w->mlp, &l->mlp, n, l->h, true, l->y, false);
        op->rmsnorm(b, l->y, hidden, w->ffn_post_norm, c->eps, n, c->hidden, l->y, hidden);
        op->add(b, l->x, l->y, count);
        model_show(m, "layer", i, l->x, n, c->hidden);
    }
    ends_logits(m, s, l->x, &l->ends);
}

static void gemma3_release(struct model *m)
{
    struct gemma3 *l = m->priv;
    rotary_free(&l->full);
    rotary_free(&l->local);
    free(l->layers);
    ends_release(&l->ends);
}

const struct arch arch_gemma3 = {
    .name = "gemma3",
    .gguf_names = (const char *const[]){"gemma3", NULL},
    .hf_names = (const char *const[]){"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", NULL},
    .priv_bytes = sizeof(struct gemma3),
    .configure = gemma3_configure,
    .weights = gemma3_weights,
    .buffers = gemma3_buffers,
    .step = gemma3_step,
    .release = gemma3_release,
};
