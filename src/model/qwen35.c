/* Qwen3.5: a hybrid. Three of four layers mix tokens with a Gated DeltaNet, whose memory is a matrix of
 * fixed size per head (the recurrent state); every fourth is full attention with an output gate, whose
 * memory grows by one key and value a token.
 *
 *   x += mixer(rmsnorm(x)),  x += down(silu(gate h) * up h) with h = rmsnorm(x)
 *   attention: [q | g] = q_proj h per head; q, k normed per head, rope on their first dimensions;
 *              o_proj(attention(q, k, v) * sigmoid(g))
 *   delta net: out_proj(rmsnorm(delta(silu(conv1d(in_proj_qkv h)), in_proj_a h, in_proj_b h)) *
 * silu(in_proj_z h))
 *
 * Norms are zero-centred in Hugging Face files (weights w mean 1 + w), plain in GGUF; the delta net's own
 * norm is plain in both. GGUF files also hold -exp(A_log) as ssm_a, and order value heads so that head v uses
 * key head v mod n_k_heads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "file/gguf.h"
#include "model/arch.h"
#include "model/qwen35.h"
#include "model/scratch.h"

/* Which layers attend: config.json's layer_types, else every full_attention_interval-th; GGUF: the list of
 * recurrent layers, else the interval. */
static int read_layer_kinds(struct model *m, const struct params *p, struct err *e)
{
    struct qwen35 *l = m->priv;
    int n = m->config.n_layers, interval = 4;
    if (params_int(p, "full_attention_interval", "full_attention_interval", false, 1, 1024, &interval, e))
        return -1;
    for (int i = 0; i < n; i++)
        l->layers[i].attention = (i + 1) % interval == 0;
    if (!p->config) {
        static const char key[] = "qwen35.attention.recurrent_layers";
        int64_t len = gguf_array_len(p->file->gguf, key), recurrent;
        if (len >= 0 && len < n)
            return err_set(e, ERR_INVALID, "%s: \"%s\" lists %lld layers, but the model has %d",
                           p->file->path, key, (long long)len, n);
        for (int i = 0; len >= 0 && i < n; i++) {
            if (!gguf_array_i64(p->file->gguf, key, i, &recurrent))
                return err_set(e, ERR_INVALID, "%s: \"%s\" must be a list of booleans", p->file->path, key);
            l->layers[i].attention = !recurrent;
        }
        return 0;
    }
    const json_t *types = json_object_get(p->config, "layer_types");
    if (!types)
        return 0;
    if (!json_is_array(types) || (int)json_array_size(types) != n)
        return err_set(e, ERR_INVALID, "%s/config.json: \"layer_types\" must list %d layers", p->file->path,
                       n);
    for (int i = 0; i < n; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (!type || (strcmp(type, "full_attention") != 0 && strcmp(type, "linear_attention") != 0))
            return err_set(e, ERR_UNSUPPORTED,
                           "%s/config.json: layer_types[%d] is \"%.60s\"; full_attention and "
                           "linear_attention are supported",
                           p->file->path, i, type ? type : "?");
        l->layers[i].attention = strcmp(type, "full_attention") == 0;
    }
    return 0;
}

static int read_delta_net(struct model *m, const struct params *p, struct err *e)
{
    struct qwen35 *l = m->priv;
    l->kernel = 4;
    if (params_int(p, "linear_num_key_heads", "ssm.group_count", true, 1, 1024, &l->n_k_heads, e) ||
        params_int(p, "linear_num_value_heads", "ssm.time_step_rank", true, 1, 1024, &l->n_v_heads, e) ||
        params_int(p, "linear_key_head_dim", "ssm.state_size", true, 1, 1024, &l->k_dim, e) ||
        params_int(p, "linear_conv_kernel_dim", "ssm.conv_kernel", false, 2, 16, &l->kernel, e))
        return -1;
    if (l->n_v_heads % l->n_k_heads)
        return err_set(e, ERR_INVALID,
                       "%s: %d value heads of the delta net are not a multiple of %d key heads",
                       p->file->path, l->n_v_heads, l->n_k_heads);
    if (p->config)
        return params_int(p, "linear_value_head_dim", NULL, true, 1, 1024, &l->v_dim, e);
    int inner;
    if (params_int(p, NULL, "ssm.inner_size", true, 1, 1 << 20, &inner, e))
        return -1;
    if (inner % l->n_v_heads)
        return err_set(e, ERR_INVALID, "%s: \"%s.ssm.inner_size\" %d is not a multiple of %d value heads",
                       p->file->path, p->prefix, inner, l->n_v_heads);
    l->v_dim = inner / l->n_v_heads;
    return 0;
}

static int qwen35_configure(struct model *m, const struct params *p, struct err *e)
{
    struct model_config *c = &m->config;
    struct qwen35 *l = m->priv;
    bool gated = true, bias = false;
    int mtp = 0;
    if (decoder_config(m, p, "hidden_act", "silu", e) ||
        params_bool(p, "attn_output_gate", NULL, &gated, e) ||
        params_bool(p, "attention_bias", NULL, &bias, e) ||
        params_int(p, NULL, "nextn_predict_layers", false, 0, c->n_layers - 1, &mtp, e) ||
        read_delta_net(m, p, e))
        return -1;
    if (!gated)
        return err_set(e, ERR_UNSUPPORTED, "%s/config.json: attn_output_gate false is not supported",
                       p->file->path);
    if (bias)
        return err_set(e, ERR_UNSUPPORTED, "%s/config.json: attention_bias is not supported", p->file->path);
    c->n_layers -= mtp; /* GGUF counts the MTP block as the last layer */
    l->layers = mem_zalloc((size_t)c->n_layers, sizeof *l->layers);
    if (read_layer_kinds(m, p, e))
        return -1;
    l->norm_plus = p->config ? 1 : 0;
    l->tiled = !p->config;
    l->channels = 2 * l->n_k_heads * l->k_dim + l->n_v_heads * l->v_dim;
    int inner = l->n_v_heads * l->v_dim;
    c->max_cols = inner > c->max_cols ? inner : c->max_cols;

    c->n_kv_layers = 0;
    for (int i = 0; i < c->n_layers; i++) {
        struct qwen35_layer *w = &l->layers[i];
        if (w->attention) {
            w->kv_layer = c->n_kv_layers++;
            continue;
        }
        w->state = c->state_bytes;
        w->conv =
            w->state + (size_t)inner * (size_t)l->k_dim * (size_t)dtype_info((int)m->state_dtype)->bytes;
        c->state_bytes = w->conv + (size_t)(l->kernel - 1) * (size_t)l->channels *
                                       (size_t)dtype_info((int)m->conv_dtype)->bytes;
        c->state_bytes = (c->state_bytes + 3) / 4 * 4; /* what follows may be floats */
    }

    bool in_file = qwen35_has_mtp(p->file, c->n_layers);
    m->has_mtp = m->want_mtp && in_file;
    if (m->want_mtp != in_file)
        log_info("%s: %s", p->file->path,
                 in_file ? "the MTP head in the file is not loaded: nothing was asked to draft with it"
                         : "the file has no MTP head");
    if (m->has_mtp) {
        l->mtp.layer = (struct qwen35_layer){.attention = true, .kv_layer = c->n_kv_layers++};
        c->max_cols = 2 * c->hidden > c->max_cols ? 2 * c->hidden : c->max_cols;
    }

    int rope_dims = c->head_dim;
    float partial = 1;
    const json_t *in_rope =
        p->config ? json_object_get(json_object_get(p->config, "rope_parameters"), "partial_rotary_factor")
                  : NULL;
    if (in_rope &&
        !(json_is_number(in_rope) && json_number_value(in_rope) > 0 && json_number_value(in_rope) <= 1))
        return err_set(e, ERR_INVALID,
                       "%s/config.json: \"partial_rotary_factor\" must be above 0 and at most 1",
                       p->file->path);
    if (in_rope)
        partial = (float)json_number_value(in_rope);
    if (params_float(p, "partial_rotary_factor", NULL, false, 0, 1, &partial, e) ||
        params_int(p, NULL, "rope.dimension_count", false, 2, c->head_dim, &rope_dims, e))
        return -1;
    return rotary_read(p, (int)((float)rope_dims * partial), &l->rope, e);
}

#define NAME(hf, gguf) ((struct weight_name){hf, gguf})

static int attention_weights(struct model *m, struct weights *w, struct qwen35_layer *a, struct err *e)
{
    const struct model_config *c = &m->config;
    const struct qwen35 *l = m->priv;
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    if (weights_mat(w, NAME(".self_attn.q_proj.weight", ".attn_q.weight"), 0, 2 * q, c->hidden, NULL, &a->q,
                    e) ||
        weights_mat(w, NAME(".self_attn.k_proj.weight", ".attn_k.weight"), 0, kv, c->hidden, NULL, &a->k,
                    e) ||
        weights_mat(w, NAME(".self_attn.v_proj.weight", ".attn_v.weight"), 0, kv, c->hidden, NULL, &a->v,
                    e) ||
        weights_mat(w, NAME(".self_attn.o_proj.weight", ".attn_output.weight"), 0, c->hidden, q, NULL, &a->o,
                    e) ||
        weights_vec(w, NAME(".self_attn.q_norm.weight", ".attn_q_norm.weight"), 0, c->head_dim, l->norm_plus,
                    NULL, &a->q_norm, e) ||
        weights_vec(w, NAME(".self_attn.k_norm.weight", ".attn_k_norm.weight"), 0, c->head_dim, l->norm_plus,
                    NULL, &a->k_norm, e))
        return -1;
    return 0;
}

static int delta_net_weights(struct model *m, struct weights *w, struct qwen35_layer *d, struct err *e)
{
    const struct model_config *c = &m->config;
    const struct qwen35 *l = m->priv;
    int inner = l->n_v_heads * l->v_dim, hv = l->n_v_heads;
    int neg_exp = w->m->file->kind == MODEL_FILE_HF ? WEIGHT_NEG_EXP : 0;
    if (weights_mat(w, NAME(".linear_attn.in_proj_qkv.weight", ".attn_qkv.weight"), 0, l->channels, c->hidden,
                    NULL, &d->in_qkv, e) ||
        weights_mat(w, NAME(".linear_attn.in_proj_z.weight", ".attn_gate.weight"), 0, inner, c->hidden, NULL,
                    &d->in_z, e) ||
        weights_mat(w, NAME(".linear_attn.in_proj_a.weight", ".ssm_alpha.weight"), 0, hv, c->hidden, NULL,
                    &d->in_a, e) ||
        weights_mat(w, NAME(".linear_attn.in_proj_b.weight", ".ssm_beta.weight"), 0, hv, c->hidden, NULL,
                    &d->in_b, e) ||
        weights_mat(w, NAME(".linear_attn.out_proj.weight", ".ssm_out.weight"), 0, c->hidden, inner, NULL,
                    &d->out, e) ||
        weights_vec(w, NAME(".linear_attn.conv1d.weight", ".ssm_conv1d.weight"), 0,
                    (int64_t)l->channels * l->kernel, 0, NULL, &d->conv_weight, e) ||
        weights_vec(w, NAME(".linear_attn.A_log", ".ssm_a"), neg_exp, hv, 0, NULL, &d->neg_exp_a, e) ||
        weights_vec(w, NAME(".linear_attn.dt_bias", ".ssm_dt.bias"), 0, hv, 0, NULL, &d->dt_bias, e) ||
        weights_vec(w, NAME(".linear_attn.norm.weight", ".ssm_norm.weight"), 0, l->v_dim, 0, NULL,
                    &d->out_norm, e))
        return -1;
    return 0;
}

int qwen35_layer_weights(struct model *m, struct weights *w, struct qwen35_layer *layer, struct err *e)
{
    const struct model_config *c = &m->config;
    float plus = ((struct qwen35 *)m->priv)->norm_plus;
    if (weights_vec(w, NAME(".input_layernorm.weight", ".attn_norm.weight"), 0, c->hidden, plus, NULL,
                    &layer->norm, e) ||
        weights_vec(w, NAME(".post_attention_layernorm.weight", ".post_attention_norm.weight"), 0, c->hidden,
                    plus, NULL, &layer->ffn_norm, e) ||
        (layer->attention ? attention_weights : delta_net_weights)(m, w, layer, e))
        return -1;
    return mlp_weights(m, w, &layer->mlp, e);
}

static int qwen35_weights(struct model *m, struct weights *w, struct err *e)
{
    struct qwen35 *l = m->priv;
    int rc = ends_weights(m, w, l->norm_plus, &l->ends, e);
    for (int i = 0; i < m->config.n_layers && rc == 0; i++) {
        weights_layer(w, "model.layers", i, "blk", i);
        rc = qwen35_layer_weights(m, w, &l->layers[i], e);
    }
    return rc == 0 && m->has_mtp ? qwen35_mtp_weights(m, w, e) : rc;
}

static void qwen35_buffers(struct model *m, struct scratch *s, int max_tokens, int max_logits)
{
    const struct model_config *c = &m->config;
    struct qwen35 *l = m->priv;
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, inner = l->n_v_heads * l->v_dim;
    l->x = scratch_floats(s, max_tokens, c->hidden);
    l->h = scratch_floats(s, max_tokens, c->hidden);
    if (m->has_mtp)
        qwen35_mtp_buffers(m, s, max_tokens);
    ends_buffers(m, s, max_logits, &l->ends);

    size_t mark = s->at; /* the mixers and the MLP are never at work at the same time */
    l->qg = scratch_floats(s, max_tokens, 2 * q);
    l->q = scratch_floats(s, max_tokens, q);
    l->gate = scratch_floats(s, max_tokens, q);
    l->att = scratch_floats(s, max_tokens, q);
    l->k = scratch_floats(s, max_tokens, kv);
    l->v = scratch_floats(s, max_tokens, kv);
    scratch_reuse(s, mark);
    l->raw = scratch_floats(s, max_tokens, l->channels);
    l->mixed = scratch_floats(s, max_tokens, l->channels);
    l->z = scratch_floats(s, max_tokens, inner);
    l->o = scratch_floats(s, max_tokens, inner);
    l->a = scratch_floats(s, max_tokens, l->n_v_heads);
    l->b = scratch_floats(s, max_tokens, l->n_v_heads);
    scratch_reuse(s, mark);
    mlp_buffers(m, s, max_tokens, &l->mlp);
}

static void attention_mixer(struct model *m, const struct step *s, const struct qwen35_layer *w, int i)
{
    const struct model_config *c = &m->config;
    struct qwen35 *l = m->priv;
    struct backend *b = m->b;
    const struct backend_ops *op = b->ops;
    int n = s->batch->n_tokens, q_dim = c->n_heads * c->head_dim, kv_dim = c->n_kv_heads * c->head_dim;
    size_t d = (size_t)c->head_dim;

    struct mat_use uses[] = {{.w = w->q, .out = l->qg}, {.w = w->k, .out = l->k}, {.w = w->v, .out = l->v}};
    op->matmul(b, l->h, n, uses, 3);
    model_show(m, "q_proj", i, l->qg, n, 2 * q_dim);
    model_show(m, "k_proj", i, l->k, n, kv_dim);
    model_show(m, "v_proj", i, l->v, n, kv_dim);
    op->slice(b, l->qg, n, c->n_heads, 2 * c->head_dim, 0, c->head_dim, l->q);
    op->slice(b, l->qg, n, c->n_heads, 2 * c->head_dim, c->head_dim, c->head_dim, l->gate);
    op->rmsnorm(b, l->q, d, w->q_norm, c->eps, (int64_t)n * c->n_heads, c->head_dim, l->q, d);
    op->rmsnorm(b, l->k, d, w->k_norm, c->eps, (int64_t)n * c->n_kv_heads, c->head_dim, l->k, d);
    model_show(m, "q_norm", i, l->q, n, q_dim);
    model_show(m, "k_norm", i, l->k, n, kv_dim);
    op->rope(b, l->q, (size_t)q_dim, c->n_heads, c->head_dim, &l->rope, s->batch->positions, n);
    op->rope(b, l->k, (size_t)kv_dim, c->n_kv_heads, c->head_dim, &l->rope, s->batch->positions, n);
    op->kv_write(b, s->kv, w->kv_layer, l->k, l->v, s->batch);
    struct attention att = {.q = l->q,
                            .out = l->att,
                            .layer = w->kv_layer,
                            .n_heads = c->n_heads,
                            .scale = 1.0f / sqrtf((float)c->head_dim)};
    op->attention(b, s->kv, &att, s->batch);
    op->sigmoid_mul(b, l->att, l->gate, (int64_t)n * q_dim);
    model_show(m, "o_proj_input", i, l->att, n, q_dim);
    struct mat_use o = {.w = w->o, .out = l->x, .add = true};
    op->matmul(b, l->att, n, &o, 1);
}

/* raw, a, b -> o: the convolution and the delta net, over the states. Where a state is to be saved in the
 * middle of a slice, the slice is cut there: that changes no bits, since both go token by token. */
static void mix_states(struct model *m, const struct step *s, const struct qwen35_layer *w)
{
    const struct model_config *c = &m->config;
    struct qwen35 *l = m->priv;
    struct backend *b = m->b;
    struct conv1d conv = {.channels = l->channels,
                          .kernel = l->kernel,
                          .weight = w->conv_weight,
                          .x = l->raw,
                          .out = l->mixed,
                          .state = (char *)s->state + w->conv,
                          .state_stride = c->state_bytes,
                          .state_dtype = m->conv_dtype};
    struct delta_net net = {.n_k_heads = l->n_k_heads,
                            .n_v_heads = l->n_v_heads,
                            .k_dim = l->k_dim,
                            .v_dim = l->v_dim,
                            .tiled = l->tiled,
                            .neg_exp_a = w->neg_exp_a,
                            .dt_bias = w->dt_bias,
                            .eps = 1e-6f,
                            .qkv = l->mixed,
                            .a = l->a,
                            .b = l->b,
                            .out = l->o,
                            .state = (char *)s->state + w->state,
                            .state_stride = c->state_bytes,
                            .state_dtype = m->state_dtype};
    b->ops->conv1d(b, &conv, s->batch);
    b->ops->delta_net(b, &net, s->batch);
}

static void delta_net_mixer(struct model *m, const struct step *s, const struct qwen35_layer *w, int i)
{
    const struct model_config *c = &m->config;
    struct qwen35 *l = m->priv;
    struct backend *b = m->b;
    const struct backend_ops *op = b->ops;
    int n = s->batch->n_tokens, inner = l->n_v_heads * l->v_dim;
    size_t v_dim = (size_t)l->v_dim;

    struct mat_use uses[] = {{.w = w->in_qkv, .out = l->raw},
                             {.w = w->in_z, .out = l->z},
                             {.w = w->in_a, .out = l->a},
                             {.w = w->in_b, .out = l->b}};
    op->matmul(b, l->h, n, uses, 4);
    model_show(m, "in_proj_qkv", i, l->raw, n, l->channels);
    model_show(m, "in_proj_z", i, l->z, n, inner);
    model_show(m, "in_proj_a", i, l->a, n, l->n_v_heads);
    model_show(m, "in_proj_b", i, l->b, n, l->n_v_heads);
    mix_states(m, s, w);
    model_show(m, "core_attn_out", i, l->o, n * l->n_v_heads, l->v_dim);
    op->rmsnorm(b, l->o, v_dim, w->out_norm, c->eps, (int64_t)n * l->n_v_heads, l->v_dim, l->o, v_dim);
    op->silu_mul(b, l->z, l->o, (int64_t)n * inner);
    model_show(m, "gated_norm", i, l->z, n * l->n_v_heads, l->v_dim);
    struct mat_use out = {.w = w->out, .out = l->x, .add = true};
    op->matmul(b, l->z, n, &out, 1);
}

void qwen35_layer_step(struct model *m, const struct step *s, const struct qwen35_layer *w, int i)
{
    const struct model_config *c = &m->config;
    struct qwen35 *l = m->priv;
    struct backend *b = m->b;
    int n = s->batch->n_tokens;
    size_t hidden = (size_t)c->hidden;
    b->ops->rmsnorm(b, l->x, hidden, w->norm, c->eps, n, c->hidden, l->h, hidden);
    if (w->attention)
        attention_mixer(m, s, w, i);
    else
        delta_net_mixer(m, s, w, i);
    b->ops->rmsnorm(b, l->x, hidden, w->ffn_norm, c->eps, n, c->hidden, l->h, hidden);
    mlp_step(m, &w->mlp, &l->mlp, n, l->h, false, l->x, true);
    model_show(m, "layer", i, l->x, n, c->hidden);
}

static void qwen35_step(struct model *m, const struct step *s)
{
    const struct model_config *c = &m->config;
    struct qwen35 *l = m->priv;
    int n = s->batch->n_tokens;
    m->b->ops->embed(m->b, l->ends.embed, s->batch->tokens, n, 1.0f, l->x);
    model_show(m, "embed", -1, l->x, n, c->hidden);
    for (int i = 0; i < c->n_layers; i++)
        qwen35_layer_step(m, s, &l->layers[i], i);
    ends_logits(m, s, l->x, &l->ends);
}

static const float *qwen35_hidden(const struct model *m)
{
    return ((const struct qwen35 *)m->priv)->ends.last;
}

static void qwen35_release(struct model *m)
{
    struct qwen35 *l = m->priv;
    rotary_free(&l->rope);
    free(l->layers);
    ends_release(&l->ends);
}

const struct arch arch_qwen35 = {
    .name = "qwen35",
    .gguf_names = (const char *const[]){"qwen35", NULL},
    .hf_names = (const char *const[]){"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration", NULL},
    .priv_bytes = sizeof(struct qwen35),
    .configure = qwen35_configure,
    .weights = qwen35_weights,
    .buffers = qwen35_buffers,
    .step = qwen35_step,
    .hidden = qwen35_hidden,
    .draft = qwen35_draft,
    .release = qwen35_release,
};
