#include "model/layers.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

int mlp_weights(struct model *m, struct weights *w, struct mlp *mlp, struct err *e)
{
    const struct model_config *c = &m->config;
    struct weight_name gate = {".mlp.gate_proj.weight", ".ffn_gate.weight"};
    struct weight_name up = {".mlp.up_proj.weight", ".ffn_up.weight"};
    struct weight_name down = {".mlp.down_proj.weight", ".ffn_down.weight"};
    if (weights_mat(w, gate, 0, c->ffn, c->hidden, NULL, &mlp->gate, e) ||
        weights_mat(w, up, 0, c->ffn, c->hidden, NULL, &mlp->up, e) ||
        weights_mat(w, down, 0, c->hidden, c->ffn, NULL, &mlp->down, e))
        return -1;
    return 0;
}

void mlp_buffers(struct model *m, struct scratch *s, int max_tokens, struct mlp_buffers *b)
{
    b->gate = scratch_floats(s, max_tokens, m->config.ffn);
    b->up = scratch_floats(s, max_tokens, m->config.ffn);
}

void mlp_step(struct model *m, const struct mlp *mlp, const struct mlp_buffers *b, int n, const float *h,
              bool gelu, float *out, bool add)
{
    struct backend *be = m->b;
    struct mat_use gate_up[] = {{.w = mlp->gate, .out = b->gate}, {.w = mlp->up, .out = b->up}};
    be->ops->matmul(be, h, n, gate_up, 2);
    int64_t count = (int64_t)n * m->config.ffn;
    if (gelu)
        be->ops->gelu_mul(be, b->gate, b->up, count);
    else
        be->ops->silu_mul(be, b->gate, b->up, count);
    struct mat_use down = {.w = mlp->down, .out = out, .add = add};
    be->ops->matmul(be, b->gate, n, &down, 1);
}

int ends_weights(struct model *m, struct weights *w, float norm_plus, struct ends *ends, struct err *e)
{
    const struct model_config *c = &m->config;
    struct weight_name embed = {"model.embed_tokens.weight", "token_embd.weight"};
    struct weight_name norm = {"model.norm.weight", "output_norm.weight"};
    struct weight_name head = {"lm_head.weight", "output.weight"};
    if (weights_mat(w, embed, c->tied ? 0 : WEIGHT_LOOKUP, c->vocab, c->hidden, NULL, &ends->embed, e) ||
        weights_vec(w, norm, 0, c->hidden, norm_plus, NULL, &ends->final_norm, e))
        return -1;
    if (!c->tied && weights_mat(w, head, 0, c->vocab, c->hidden, NULL, &ends->head, e))
        return -1;
    if (c->tied)
        ends->head = ends->embed;
    return 0;
}

void ends_buffers(struct model *m, struct scratch *s, int max_logits, struct ends *ends)
{
    ends->last = scratch_floats(s, max_logits, m->config.hidden);
    if (s->base)
        ends->logit_rows = mem_zalloc((size_t)max_logits, sizeof *ends->logit_rows);
}

void ends_release(struct ends *ends)
{
    free(ends->logit_rows);
}

void ends_gather(struct model *m, const struct batch *batch, const float *x, struct ends *ends)
{
    int32_t *row = ends->logit_rows;
    for (int i = 0; i < batch->n_seqs; i++) {
        const struct seq_slice *q = &batch->seqs[i];
        for (int k = q->count - q->n_logits; k < q->count; k++)
            *row++ = q->first + k;
    }
    m->b->ops->gather(m->b, x, ends->logit_rows, batch->n_logits, m->config.hidden, ends->last);
}

void ends_logits(struct model *m, const struct step *s, const float *x, struct ends *ends)
{
    const struct model_config *c = &m->config;
    struct backend *b = m->b;
    int n = s->batch->n_logits;
    size_t hidden = (size_t)c->hidden;
    if (n == 0)
        return;
    ends_gather(m, s->batch, x, ends);
    b->ops->rmsnorm(b, ends->last, hidden, ends->final_norm, c->eps, n, c->hidden, ends->last, hidden);
    model_show(m, "final_norm", -1, ends->last, n, c->hidden);
    struct mat_use head = {.w = ends->head, .out = s->logits};
    b->ops->matmul(b, ends->last, n, &head, 1);
    model_show(m, "logits", -1, s->logits, n, c->vocab);
}

static int refuse_quantised(const struct params *p, struct err *e)
{
    if (p->file->quantised.refusal)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s/config.json: %s; use another checkpoint of the model, or a GGUF file",
                       p->file->path, p->file->quantised.refusal);
    return 0;
}

static int refuse_unsupported(const struct params *p, const char *act_key, const char *act, struct err *e)
{
    const char *has;
    bool mlp_bias = false;
    int experts = 0;
    if (refuse_quantised(p, e) || params_str(p, act_key, NULL, &has, e) ||
        params_bool(p, "mlp_bias", NULL, &mlp_bias, e) ||
        params_int(p, "num_experts", "expert_count", false, 0, 1 << 20, &experts, e))
        return -1;
    if (has && strcmp(has, act) != 0)
        return err_set(e, ERR_UNSUPPORTED, "%s/config.json: %s \"%.60s\" is not supported (%s is)",
                       p->file->path, act_key, has, act);
    if (mlp_bias)
        return err_set(e, ERR_UNSUPPORTED, "%s/config.json: mlp_bias is not supported", p->file->path);
    if (experts)
        return err_set(e, ERR_UNSUPPORTED, "%s: mixture of experts (%d experts) is not supported",
                       p->file->path, experts);
    return 0;
}

int decoder_config(struct model *m, const struct params *p, const char *act_key, const char *act,
                   struct err *e)
{
    struct model_config *c = &m->config;
    if (refuse_unsupported(p, act_key, act, e) ||
        params_int(p, "hidden_size", "embedding_length", true, 1, 1 << 17, &c->hidden, e) ||
        params_int(p, "num_hidden_layers", "block_count", true, 1, 1024, &c->n_layers, e) ||
        params_int(p, "num_attention_heads", "attention.head_count", true, 1, 1024, &c->n_heads, e) ||
        params_int(p, "intermediate_size", "feed_forward_length", true, 1, 1 << 20, &c->ffn, e) ||
        params_int(p, "max_position_embeddings", "context_length", true, 1, 1 << 27, &c->max_positions, e) ||
        params_float(p, "rms_norm_eps", "attention.layer_norm_rms_epsilon", true, 0, 1, &c->eps, e) ||
        params_bool(p, "tie_word_embeddings", NULL, &c->tied, e))
        return -1;
    if (!p->config)
        c->tied = !model_file_tensor(p->file, "output.weight");
    c->n_kv_heads = c->n_heads;
    c->head_dim = c->hidden / c->n_heads;
    if (params_int(p, "num_key_value_heads", "attention.head_count_kv", false, 1, 1024, &c->n_kv_heads, e) ||
        params_int(p, "head_dim", "attention.key_length", false, 1, 1024, &c->head_dim, e))
        return -1;
    if (c->n_heads % c->n_kv_heads)
        return err_set(e, ERR_INVALID, "%s: %d attention heads are not a multiple of %d key-value heads",
                       p->file->path, c->n_heads, c->n_kv_heads);
    if (c->head_dim < 2 || c->head_dim % 2)
        return err_set(e, ERR_INVALID, "%s: head dimension %d must be even and positive", p->file->path,
                       c->head_dim);

    /* The vocabulary is the embedding's height where the file does not say: not every GGUF does. A wrong
     * height is found when the weights are declared. */
    static const char *const embeddings[] = {"token_embd.weight", "model.embed_tokens.weight",
                                             "model.language_model.embed_tokens.weight",
                                             "language_model.model.embed_tokens.weight"};
    for (size_t i = 0; i < sizeof embeddings / sizeof embeddings[0]; i++) {
        const struct tensor *t = model_file_tensor(p->file, embeddings[i]);
        if (t && t->n_dims == 2 && t->shape[0] <= 1 << 24)
            c->vocab = (int)t->shape[0];
    }
    if (params_int(p, "vocab_size", NULL, false, 1, 1 << 24, &c->vocab, e))
        return -1;
    int attn = c->n_heads * c->head_dim;
    c->max_cols = c->ffn > c->hidden ? c->ffn : c->hidden;
    c->max_cols = attn > c->max_cols ? attn : c->max_cols;
    c->n_kv_layers = c->n_layers;
    return 0;
}
