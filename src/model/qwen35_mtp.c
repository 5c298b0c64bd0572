/* Qwen3.5's MTP head: drafts token t+2 from the hidden state of t and token t+1.
 *
 *   x = fc([norm(embed(token)) | norm(h)]), one full-attention decoder layer with its own keys and values,
 *   h' = norm(x), logits = head(h')
 *
 * h is the trunk's hidden state after its final norm; for a second draft, the head's own h'. */
#include <stdio.h>

#include "model/qwen35.h"
#include "model/scratch.h"
#include "model/weights.h"

bool qwen35_has_mtp(const struct model_file *f, int n_layers)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.nextn.eh_proj.weight", n_layers);
    return model_file_tensor(f, f->kind == MODEL_FILE_HF ? "mtp.fc.weight" : name) != NULL;
}

int qwen35_mtp_weights(struct model *m, struct weights *w, struct err *e)
{
    const struct model_config *c = &m->config;
    struct qwen35 *l = m->priv;
    struct qwen35_mtp *t = &l->mtp;
    struct weight_name fc = {"mtp.fc.weight", ".nextn.eh_proj.weight"};
    struct weight_name embed_norm = {"mtp.pre_fc_norm_embedding.weight", ".nextn.enorm.weight"};
    struct weight_name hidden_norm = {"mtp.pre_fc_norm_hidden.weight", ".nextn.hnorm.weight"};
    struct weight_name out_norm = {"mtp.norm.weight", ".nextn.shared_head_norm.weight"};
    weights_layer(w, "mtp.layers", 0, "blk", c->n_layers);
    if (weights_mat(w, fc, 0, c->hidden, 2 * (int64_t)c->hidden, NULL, &t->fc, e) ||
        weights_vec(w, embed_norm, 0, c->hidden, l->norm_plus, NULL, &t->embed_norm, e) ||
        weights_vec(w, hidden_norm, 0, c->hidden, l->norm_plus, NULL, &t->hidden_norm, e) ||
        weights_vec(w, out_norm, 0, c->hidden, l->norm_plus, NULL, &t->out_norm, e))
        return -1;
    return qwen35_layer_weights(m, w, &t->layer, e);
}

void qwen35_mtp_buffers(struct model *m, struct scratch *s, int max_tokens)
{
    ((struct qwen35 *)m->priv)->mtp.pair = scratch_floats(s, max_tokens, 2 * (int64_t)m->config.hidden);
}

void qwen35_draft(struct model *m, const struct step *s, const float *hidden, float *out)
{
    const struct model_config *c = &m->config;
    struct qwen35 *l = m->priv;
    struct qwen35_mtp *t = &l->mtp;
    struct backend *b = m->b;
    const struct backend_ops *op = b->ops;
    int n = s->batch->n_tokens;
    size_t h = (size_t)c->hidden;
    op->embed(b, l->ends.embed, s->batch->tokens, n, 1.0f, l->x);
    op->rmsnorm(b, l->x, h, t->embed_norm, c->eps, n, c->hidden, t->pair, 2 * h);
    op->rmsnorm(b, hidden, h, t->hidden_norm, c->eps, n, c->hidden, t->pair + h, 2 * h);
    struct mat_use fc = {.w = t->fc, .out = l->x};
    op->matmul(b, t->pair, n, &fc, 1);
    qwen35_layer_step(m, s, &t->layer, c->n_layers);
    op->rmsnorm(b, l->x, h, t->out_norm, c->eps, n, c->hidden, out, h);
    if (s->batch->n_logits == 0)
        return;
    ends_gather(m, s->batch, out, &l->ends);
    struct mat_use head = {.w = l->ends.head, .out = s->logits};
    op->matmul(b, l->ends.last, s->batch->n_logits, &head, 1);
}
