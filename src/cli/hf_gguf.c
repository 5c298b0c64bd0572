/* The two worlds call things differently, and GGUF keeps two of them differently: vectors are F32, and
 * "llama" files have the rows of q and k in the order of interleaved rope. */
#include "cli/hf_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/write_gguf.h"

static const struct {
    const char *hf, *gguf;
} names[] = {
    {"input_layernorm.weight", "attn_norm.weight"},    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},      {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},      {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_proj.bias", "attn_q.bias"},          {"self_attn.k_proj.bias", "attn_k.bias"},
    {"self_attn.v_proj.bias", "attn_v.bias"},          {"self_attn.o_proj.bias", "attn_output.bias"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"}, {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},       {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
};

/* False for a tensor that GGUF has no place for. */
static bool gguf_name(const char *hf, bool tied, char *out, size_t n)
{
    int layer, at = 0;
    const char *whole = strcmp(hf, "model.embed_tokens.weight") == 0 ? "token_embd.weight"
                        : strcmp(hf, "model.norm.weight") == 0       ? "output_norm.weight"
                        : strcmp(hf, "lm_head.weight") == 0 && !tied ? "output.weight"
                                                                     : NULL;
    if (whole) {
        snprintf(out, n, "%s", whole);
        return true;
    }
    if (sscanf(hf, "model.layers.%5d.%n", &layer, &at) != 1 || !at || layer < 0)
        return false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(hf + at, names[i].hf) == 0) {
            snprintf(out, n, "blk.%d.%s", layer, names[i].gguf);
            return true;
        }
    }
    return false;
}

struct shape {
    const char *arch;
    bool permuted, tied;
    int heads, kv_heads, head_dim, vocab;
};

static int get_int(const struct model_file *f, const char *key, int fallback, int *out, struct err *e)
{
    const json_t *v = json_object_get(f->config, key);
    if ((!v || json_is_null(v)) && fallback > 0) {
        *out = fallback;
        return 0;
    }
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > 1 << 27)
        return err_set(e, ERR_INVALID, "%s/config.json: \"%s\" must be a whole number from 1", f->path, key);
    *out = (int)json_integer_value(v);
    return 0;
}

static int write_metadata(const struct model_file *f, struct shape *s, struct gguf_writer *w, struct err *e)
{
    static const struct {
        const char *hf, *gguf;
        bool permuted;
    } archs[] = {{"LlamaForCausalLM", "llama", true},
                 {"Qwen2ForCausalLM", "qwen2", false},
                 {"Qwen3ForCausalLM", "qwen3", false}};
    const char *name = json_string_value(json_array_get(json_object_get(f->config, "architectures"), 0));
    for (size_t i = 0; name && i < sizeof archs / sizeof archs[0]; i++)
        if (strcmp(name, archs[i].hf) == 0)
            *s = (struct shape){.arch = archs[i].gguf, .permuted = archs[i].permuted};
    const json_t *rope = json_object_get(f->config, "rope_parameters"),
                 *scaling = json_object_get(f->config, "rope_scaling");
    const char *rope_type = json_string_value(json_object_get(rope, "rope_type"));
    if (!s->arch || json_object_get(f->config, "quantization_config") || json_is_object(scaling) ||
        (rope_type && strcmp(rope_type, "default") != 0))
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: %s is not written as GGUF by this build: --quantization of serve, run and bench "
                       "encodes a directory as it is loaded",
                       f->path,
                       !s->arch ? (name ? name : "an unnamed architecture")
                       : json_object_get(f->config, "quantization_config")
                           ? "a model that is quantised already"
                           : "scaled rope");
    int layers, context, hidden, ffn;
    if (get_int(f, "num_hidden_layers", 0, &layers, e) ||
        get_int(f, "max_position_embeddings", 0, &context, e) || get_int(f, "hidden_size", 0, &hidden, e) ||
        get_int(f, "intermediate_size", 0, &ffn, e) || get_int(f, "num_attention_heads", 0, &s->heads, e) ||
        get_int(f, "num_key_value_heads", s->heads, &s->kv_heads, e) ||
        get_int(f, "head_dim", hidden / s->heads, &s->head_dim, e) ||
        get_int(f, "vocab_size", 0, &s->vocab, e))
        return -1;
    s->tied = json_is_true(json_object_get(f->config, "tie_word_embeddings"));
    const json_t *theta = json_object_get(f->config, "rope_theta"),
                 *eps = json_object_get(f->config, "rms_norm_eps");
    if (!theta)
        theta = json_object_get(rope, "rope_theta");
    const struct {
        const char *key;
        int value;
    } ints[] = {{"block_count", layers},
                {"context_length", context},
                {"embedding_length", hidden},
                {"feed_forward_length", ffn},
                {"vocab_size", s->vocab},
                {"attention.head_count", s->heads},
                {"attention.head_count_kv", s->kv_heads},
                {"attention.key_length", s->head_dim},
                {"attention.value_length", s->head_dim},
                {"rope.dimension_count", s->head_dim}};
    char key[100];
    gguf_writer_str(w, "general.architecture", s->arch);
    gguf_writer_str(w, "general.type", "model");
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        snprintf(key, sizeof key, "%s.%s", s->arch, ints[i].key);
        gguf_writer_u32(w, key, (uint32_t)ints[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", s->arch);
    gguf_writer_f32(w, key, json_is_number(eps) ? (float)json_number_value(eps) : 1e-6f);
    snprintf(key, sizeof key, "%s.rope.freq_base", s->arch);
    gguf_writer_f32(w, key, json_is_number(theta) ? (float)json_number_value(theta) : 10000.0f);
    return tokenizer_write_gguf(f, s->vocab, w, e);
}

/* q or k with each head's row j * d/2 + i at 2i + j. */
static int write_permuted(struct gguf_writer *w, int tensor, const struct tensor *t, int d, struct err *e)
{
    size_t row = t->bytes / (size_t)t->shape[0];
    uint8_t *out = mem_alloc(t->bytes);
    for (int64_t r = 0; r < t->shape[0]; r++) {
        int64_t head = r / d, j = r % d / (d / 2), i = r % (d / 2);
        memcpy(out + (size_t)(head * d + 2 * i + j) * row, (const uint8_t *)t->data + (size_t)r * row, row);
    }
    int rc = gguf_writer_data(w, tensor, 0, out, t->bytes, e);
    free(out);
    return rc;
}

static int write_tensor(struct gguf_writer *w, int tensor, const struct tensor *t, const struct shape *s,
                        const char *name, struct err *e)
{
    if (t->n_dims == 1) {
        float *x = mem_alloc((size_t)t->shape[0] * sizeof *x);
        dtype_to_float(t->dtype, t->data, x, t->shape[0]);
        int rc = gguf_writer_data(w, tensor, 0, x, (size_t)t->shape[0] * sizeof *x, e);
        free(x);
        return rc;
    }
    if (s->permuted && (strstr(name, "attn_q.weight") || strstr(name, "attn_k.weight")))
        return write_permuted(w, tensor, t, s->head_dim, e);
    return gguf_writer_data(w, tensor, 0, t->data, t->bytes, e);
}

int hf_write_gguf(const struct model_file *f, const char *path, struct err *e)
{
    struct shape s = {0};
    char name[200];
    int rc = -1, n = 0;
    int *numbers = mem_alloc((size_t)f->n_tensors * sizeof *numbers + 1);
    struct gguf_writer *w = gguf_writer_open(path, e);
    if (!w || write_metadata(f, &s, w, e))
        goto done;
    for (int i = 0; i < f->n_tensors; i++) {
        const struct tensor *t = &f->tensors[i];
        numbers[i] = -1;
        if (!gguf_name(t->name, s.tied, name, sizeof name))
            continue;
        bool plain = t->dtype == DT_F32 || t->dtype == DT_F16 || t->dtype == DT_BF16;
        bool rotated = s.permuted && (strstr(name, "attn_q.weight") || strstr(name, "attn_k.weight"));
        if (!plain || t->n_dims < 1 || t->n_dims > 2 ||
            (rotated && (s.head_dim % 2 || t->shape[0] % s.head_dim || t->n_dims != 2))) {
            err_set(e, ERR_UNSUPPORTED, "%s: tensor \"%s\" has a type or shape that is not written as GGUF",
                    f->path, t->name);
            goto done;
        }
        numbers[i] = gguf_writer_tensor(w, name, t->n_dims == 1 ? DT_F32 : t->dtype, t->n_dims, t->shape);
        n++;
    }
    if (n == 0) {
        err_set(e, ERR_INVALID, "%s: holds no tensor of such a model", f->path);
        goto done;
    }
    if (gguf_writer_begin(w, e))
        goto done;
    for (int i = 0; i < f->n_tensors; i++) {
        if (numbers[i] < 0)
            continue;
        gguf_name(f->tensors[i].name, s.tied, name, sizeof name);
        if (write_tensor(w, numbers[i], &f->tensors[i], &s, name, e))
            goto done;
        model_file_drop(f, &f->tensors[i]);
    }
    rc = gguf_writer_finish(w, e);
done:
    gguf_writer_close(w);
    free(numbers);
    return rc;
}
