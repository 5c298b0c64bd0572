#include "cli/model_like.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define CONV_KERNEL 4 /* of all delta nets */

#define QWEN35                                                                                             \
    .arch = "qwen35", .pre = "qwen35", .head_dim = 256, .rope_dims = 64, .rope_theta = 1e7f, .eps = 1e-6f, \
    .vocab = 248320, .context = 262144, .k_heads = 16, .state_dim = 128, .interval = 4

static const struct model_like models[] = {
    {.name = "qwen3.5-0.8b",
     .title = "Qwen3.5 0.8B",
     QWEN35,
     .layers = 24,
     .hidden = 1024,
     .ffn = 3584,
     .heads = 8,
     .kv_heads = 2,
     .v_heads = 16,
     .tied = true},
    {.name = "qwen3.5-2b",
     .title = "Qwen3.5 2B",
     QWEN35,
     .layers = 24,
     .hidden = 2048,
     .ffn = 6144,
     .heads = 8,
     .kv_heads = 2,
     .v_heads = 16,
     .tied = true},
    {.name = "qwen3.5-4b",
     .title = "Qwen3.5 4B",
     QWEN35,
     .layers = 32,
     .hidden = 2560,
     .ffn = 9216,
     .heads = 16,
     .kv_heads = 4,
     .v_heads = 32,
     .tied = true},
    {.name = "qwen3.5-9b",
     .title = "Qwen3.5 9B",
     QWEN35,
     .layers = 32,
     .hidden = 4096,
     .ffn = 12288,
     .heads = 16,
     .kv_heads = 4,
     .v_heads = 32},
    {.name = "qwen3.5-27b",
     .title = "Qwen3.5 27B",
     QWEN35,
     .layers = 64,
     .hidden = 5120,
     .ffn = 17408,
     .heads = 24,
     .kv_heads = 4,
     .v_heads = 48},
    {.name = "qwen3-0.6b",
     .title = "Qwen3 0.6B",
     .arch = "qwen3",
     .pre = "qwen2",
     .layers = 28,
     .hidden = 1024,
     .ffn = 3072,
     .heads = 16,
     .kv_heads = 8,
     .head_dim = 128,
     .rope_dims = 128,
     .vocab = 151936,
     .context = 40960,
     .rope_theta = 1e6f,
     .eps = 1e-6f,
     .tied = true},
    {.name = "smollm2-135m",
     .title = "SmolLM2 135M",
     .arch = "llama",
     .pre = "smollm",
     .layers = 30,
     .hidden = 576,
     .ffn = 1536,
     .heads = 9,
     .kv_heads = 3,
     .head_dim = 64,
     .rope_dims = 64,
     .vocab = 49152,
     .context = 8192,
     .rope_theta = 1e5f,
     .eps = 1e-5f,
     .tied = true},
};

const struct model_like *model_like_find(const char *name)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (strcmp(models[i].name, name) == 0)
            return &models[i];
    return NULL;
}

/* ---- Metadata -------------------------------------------------------------------------------------------
 */

static void put_u32(const struct model_like *m, struct gguf_writer *w, const char *key, int v)
{
    char name[100];
    snprintf(name, sizeof name, "%s.%s", m->arch, key);
    gguf_writer_u32(w, name, (uint32_t)v);
}

static void put_f32(const struct model_like *m, struct gguf_writer *w, const char *key, float v)
{
    char name[100];
    snprintf(name, sizeof name, "%s.%s", m->arch, key);
    gguf_writer_f32(w, name, v);
}

static bool is_recurrent(const struct model_like *m, int layer)
{
    return m->interval && layer < m->layers && (layer + 1) % m->interval != 0;
}

/* The number by which general.file_type tells what most tensors are. */
static uint32_t file_type(enum dtype dtype)
{
    switch (dtype) {
    case DT_BF16:
        return 32;
    case DT_Q8_0:
        return 7;
    case DT_Q4_0:
        return 2;
    case DT_Q4_K:
        return 14;
    default:
        return 0; /* F32 */
    }
}

static void qwen35_metadata(const struct model_like *m, struct gguf_writer *w)
{
    int blocks = m->layers + m->mtp;
    uint8_t *recurrent = mem_zalloc((size_t)blocks, 1);
    for (int i = 0; i < blocks; i++)
        recurrent[i] = is_recurrent(m, i);
    put_u32(m, w, "ssm.conv_kernel", CONV_KERNEL);
    put_u32(m, w, "ssm.state_size", m->state_dim);
    put_u32(m, w, "ssm.group_count", m->k_heads);
    put_u32(m, w, "ssm.time_step_rank", m->v_heads);
    put_u32(m, w, "ssm.inner_size", m->v_heads * m->state_dim);
    put_u32(m, w, "full_attention_interval", m->interval);
    gguf_writer_numbers(w, "qwen35.attention.recurrent_layers", GGUF_BOOL, recurrent, (uint64_t)blocks);
    gguf_writer_numbers(w, "qwen35.rope.dimension_sections", GGUF_I32, (const int32_t[]){11, 11, 10, 0}, 4);
    if (m->mtp)
        put_u32(m, w, "nextn_predict_layers", 1);
    free(recurrent);
}

void model_like_metadata(const struct model_like *m, enum dtype dtype, struct gguf_writer *w)
{
    char title[100];
    snprintf(title, sizeof title, "Random weights in the shapes of %s", m->title);
    gguf_writer_str(w, "general.architecture", m->arch);
    gguf_writer_str(w, "general.type", "model");
    gguf_writer_str(w, "general.name", title);
    gguf_writer_u32(w, "general.file_type", file_type(dtype));
    gguf_writer_u32(w, "general.quantization_version", 2);
    put_u32(m, w, "block_count", m->layers + m->mtp);
    put_u32(m, w, "context_length", m->context);
    put_u32(m, w, "embedding_length", m->hidden);
    put_u32(m, w, "feed_forward_length", m->ffn);
    put_u32(m, w, "vocab_size", m->vocab);
    put_u32(m, w, "attention.head_count", m->heads);
    put_u32(m, w, "attention.head_count_kv", m->kv_heads);
    put_u32(m, w, "attention.key_length", m->head_dim);
    put_u32(m, w, "attention.value_length", m->head_dim);
    put_f32(m, w, "attention.layer_norm_rms_epsilon", m->eps);
    put_u32(m, w, "rope.dimension_count", m->rope_dims);
    put_f32(m, w, "rope.freq_base", m->rope_theta);
    if (m->interval)
        qwen35_metadata(m, w);
}

/* ---- Tensors --------------------------------------------------------------------------------------------
 */

struct tensor_adder {
    void (*add)(void *arg, const char *name, enum weight_kind kind, int n_dims, const int64_t *shape);
    void *arg;
    int block; /* names are "blk.N.…" of this one; -1 = names stand as they are */
};

static void add(const struct tensor_adder *a, const char *name, enum weight_kind kind, int n_dims,
                const int64_t *shape)
{
    char full[100];
    if (a->block < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s", a->block, name);
    a->add(a->arg, full, kind, n_dims, shape);
}

static void add_matrix(const struct tensor_adder *a, const char *name, int64_t rows, int64_t cols)
{
    add(a, name, WEIGHTS_MATRIX, 2, (const int64_t[]){rows, cols});
}

static void add_vector(const struct tensor_adder *a, const char *name, enum weight_kind kind, int64_t n)
{
    add(a, name, kind, 1, &n);
}

/* qwen35's queries come with a gate of the same width. */
static void add_attention(const struct model_like *m, const struct tensor_adder *a)
{
    int64_t q = (int64_t)m->heads * m->head_dim, kv = (int64_t)m->kv_heads * m->head_dim;
    add_matrix(a, "attn_q.weight", m->interval ? 2 * q : q, m->hidden);
    add_matrix(a, "attn_k.weight", kv, m->hidden);
    add_matrix(a, "attn_v.weight", kv, m->hidden);
    add_matrix(a, "attn_output.weight", m->hidden, q);
    if (strcmp(m->arch, "llama") != 0) {
        add_vector(a, "attn_q_norm.weight", WEIGHTS_NORM, m->head_dim);
        add_vector(a, "attn_k_norm.weight", WEIGHTS_NORM, m->head_dim);
    }
}

static void add_delta_net(const struct model_like *m, const struct tensor_adder *a)
{
    int64_t inner = (int64_t)m->v_heads * m->state_dim;
    int64_t channels = 2 * (int64_t)m->k_heads * m->state_dim + inner;
    add_matrix(a, "attn_qkv.weight", channels, m->hidden);
    add_matrix(a, "attn_gate.weight", inner, m->hidden);
    add_matrix(a, "ssm_alpha.weight", m->v_heads, m->hidden);
    add_matrix(a, "ssm_beta.weight", m->v_heads, m->hidden);
    add(a, "ssm_conv1d.weight", WEIGHTS_CONV, 2, (const int64_t[]){channels, CONV_KERNEL});
    add_vector(a, "ssm_a", WEIGHTS_DECAY, m->v_heads);
    add_vector(a, "ssm_dt.bias", WEIGHTS_DT, m->v_heads);
    add_vector(a, "ssm_norm.weight", WEIGHTS_NORM, m->state_dim);
    add_matrix(a, "ssm_out.weight", m->hidden, inner);
}

static void add_block(const struct model_like *m, const struct tensor_adder *a)
{
    add_vector(a, "attn_norm.weight", WEIGHTS_NORM, m->hidden);
    if (is_recurrent(m, a->block))
        add_delta_net(m, a);
    else
        add_attention(m, a);
    add_vector(a, m->interval ? "post_attention_norm.weight" : "ffn_norm.weight", WEIGHTS_NORM, m->hidden);
    add_matrix(a, "ffn_gate.weight", m->ffn, m->hidden);
    add_matrix(a, "ffn_up.weight", m->ffn, m->hidden);
    add_matrix(a, "ffn_down.weight", m->hidden, m->ffn);
    if (a->block >= m->layers) { /* the one that drafts */
        add_matrix(a, "nextn.eh_proj.weight", m->hidden, 2 * m->hidden);
        add_vector(a, "nextn.enorm.weight", WEIGHTS_NORM, m->hidden);
        add_vector(a, "nextn.hnorm.weight", WEIGHTS_NORM, m->hidden);
        add_vector(a, "nextn.shared_head_norm.weight", WEIGHTS_NORM, m->hidden);
    }
}

void model_like_tensors(const struct model_like *m,
                        void (*add_tensor)(void *arg, const char *name, enum weight_kind kind, int n_dims,
                                           const int64_t *shape),
                        void *arg)
{
    struct tensor_adder a = {.add = add_tensor, .arg = arg, .block = -1};
    add_matrix(&a, "token_embd.weight", m->vocab, m->hidden);
    if (!m->tied)
        add_matrix(&a, "output.weight", m->vocab, m->hidden);
    add_vector(&a, "output_norm.weight", WEIGHTS_NORM, m->hidden);
    for (a.block = 0; a.block < m->layers + m->mtp; a.block++)
        add_block(m, &a);
}
