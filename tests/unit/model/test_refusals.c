/* What a model may not be: configurations that no architecture here computes, and files whose tensors are not
 * those of their configuration. Each is a fixture with one thing changed, and each must be refused with the
 * key or the tensor named, never by a crash. */
#include "file/build.h"

#include "file/gguf_write.h"
#include "model/model.h"

static struct err e;

/* Opens the model at temp_path(name) and expects the message to hold all of `words` ("a|b"). */
static void refused(const char *name, const char *label, const char *words)
{
    struct model_file *f = model_file_open(temp_path(name), &e);
    if (!f)
        fail_msg("%s: the file itself does not open: %s", label, e.msg);
    struct backend *b = backend_cpu(NULL, 1, &e);
    assert_non_null(b);
    struct model *m = model_open(f, b, MODEL_MTP, &e);
    if (m)
        fail_msg("%s: was not refused", label);
    char rest[400];
    snprintf(rest, sizeof rest, "%s|%s", words, f->path);
    for (char *word = strtok(rest, "|"); word; word = strtok(NULL, "|"))
        if (!strstr(e.msg, word))
            fail_msg("%s: expected \"%s\", got: %s", label, word, e.msg);
    b->ops->destroy(b);
    model_file_close(f);
}

/* ---- Hugging Face directories: config.json changed
 * ---------------------------------------------------------
 */

/* Sets the members of `patch` in `object`; null removes. */
static void apply(json_t *object, const json_t *patch)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)patch, key, value)
    {
        if (json_is_null(value))
            json_object_del(object, key);
        else
            json_object_set(object, key, value);
    }
}

/* A directory of the fixture's weights with its config.json patched. */
static void make_dir(const char *model, const char *patch_text)
{
    char from[1200], to[2100];
    snprintf(from, sizeof from, "%s/config.json", fixture(model));
    json_t *config = json_load_file(from, 0, NULL), *patch = json_loads(patch_text, 0, NULL);
    if (!config || !patch)
        fail_msg("%s: %s", from, patch_text);
    apply(config, patch);
    snprintf(to, sizeof to, "%s/config.json", temp_path("model"));
    mkdir(temp_path("model"), 0700);
    assert_int_equal(json_dump_file(config, to, 0), 0);
    snprintf(from, sizeof from, "%s/model.safetensors", fixture(model));
    snprintf(to, sizeof to, "%s/model.safetensors", temp_path("model"));
    unlink(to);
    assert_int_equal(symlink(from, to), 0);
    json_decref(config);
    json_decref(patch);
}

static const char llama[] = "models/llama-tiny", qwen3[] = "models/qwen3-tiny",
                  qwen35[] = "models/qwen35-tiny", gemma3[] = "models/gemma3-tiny-alt";

static const struct {
    const char *model, *patch, *words;
} configs[] = {
    /* what it is */
    {llama, "{\"architectures\": [\"MambaForCausalLM\"]}", "\"MambaForCausalLM\"|Qwen3ForCausalLM"},
    {llama, "{\"architectures\": [\"Qwen3_5MoeForCausalLM\"]}", "\"Qwen3_5MoeForCausalLM\""},
    {llama, "{\"architectures\": null}", "\"architectures\""},
    {llama, "{\"architectures\": []}", "\"architectures\""},
    {llama, "{\"architectures\": [7]}", "\"architectures\""},
    /* what it computes */
    {llama, "{\"hidden_act\": \"relu2\"}", "hidden_act|relu2|silu"},
    {qwen35, "{\"hidden_act\": \"gelu\"}", "hidden_act|gelu"},
    {gemma3, "{\"hidden_activation\": \"silu\"}", "hidden_activation|silu|gelu_pytorch_tanh"},
    {llama, "{\"hidden_act\": 3}", "\"hidden_act\" must be a string"},
    {llama, "{\"mlp_bias\": true}", "mlp_bias"},
    {qwen35, "{\"attention_bias\": true}", "attention_bias"},
    {gemma3, "{\"attention_bias\": true}", "attention_bias"},
    {qwen3, "{\"num_experts\": 128}", "mixture of experts|128"},
    {qwen35, "{\"num_experts\": 8}", "mixture of experts"},
    {qwen3, "{\"use_sliding_window\": true}", "use_sliding_window"},
    {qwen35, "{\"attn_output_gate\": false}", "attn_output_gate"},
    {gemma3, "{\"final_logit_softcapping\": 30.0}", "soft-capped"},
    {gemma3, "{\"use_bidirectional_attention\": true}", "use_bidirectional_attention"},
    {llama, "{\"quantization_config\": {\"quant_method\": \"awq\"}}", "quantization_config|awq"},
    {llama, "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}}", "rope type \"yarn\""},
    {llama, "{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 4.0}}", "rope type \"dynamic\""},
    {llama, "{\"rope_scaling\": {\"rope_type\": 5}}", "rope type"},
    {llama, "{\"rope_scaling\": {\"rope_type\": \"linear\"}}", "\"factor\""},
    {llama, "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}}", "\"low_freq_factor\""},
    {llama,
     "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
     "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 64}}",
     "high_freq_factor"},
    {qwen35, "{\"rope_parameters\": {\"rope_type\": \"longrope\", \"rope_theta\": 1e6}}", "\"longrope\""},
    {qwen35, "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": \"big\"}}", "rope_theta"},
    {qwen35, "{\"rope_parameters\": {\"rope_theta\": 1e7, \"partial_rotary_factor\": 1.5}}",
     "partial_rotary_factor"},
    {qwen35, "{\"rope_parameters\": {\"rope_theta\": 1e7, \"partial_rotary_factor\": 0.03}}",
     "rotary dimension 0"},
    {llama, "{\"rope_theta\": 0}", "\"rope_theta\" is 0"},
    {llama, "{\"rope_theta\": -1e4}", "\"rope_theta\""},
    /* sizes */
    {llama, "{\"num_attention_heads\": 0}", "\"num_attention_heads\" is 0"},
    {llama, "{\"num_key_value_heads\": 0}", "\"num_key_value_heads\" is 0"},
    {llama, "{\"num_key_value_heads\": 3}", "4 attention heads|3 key-value heads"},
    {llama, "{\"num_attention_heads\": null}", "\"num_attention_heads\" is missing"},
    {llama, "{\"num_attention_heads\": \"4\"}", "\"num_attention_heads\" must be an integer"},
    {llama, "{\"num_attention_heads\": 4.5}", "\"num_attention_heads\" must be an integer"},
    {llama, "{\"num_attention_heads\": 1000000}", "\"num_attention_heads\" is 1000000"},
    {llama, "{\"head_dim\": 33}", "head dimension 33"},
    {llama, "{\"head_dim\": 0}", "\"head_dim\" is 0"},
    {llama, "{\"head_dim\": null, \"num_attention_heads\": 1024, \"num_key_value_heads\": 1024}",
     "head dimension 0"},
    {llama, "{\"head_dim\": 64}", "q_proj.weight|[128, 128]|[256, 128]"},
    {llama, "{\"hidden_size\": 0}", "\"hidden_size\" is 0"},
    {llama, "{\"hidden_size\": -128}", "\"hidden_size\" is -128"},
    {llama, "{\"hidden_size\": 4611686018427387904}", "\"hidden_size\""},
    {llama, "{\"hidden_size\": 131072}", "embed_tokens.weight|[1024, 128]|[1024, 131072]"},
    {llama, "{\"intermediate_size\": 257}", "gate_proj.weight|[256, 128]|[257, 128]"},
    {llama, "{\"intermediate_size\": 1e300}", "\"intermediate_size\" must be an integer"},
    {llama, "{\"num_hidden_layers\": 5}", "model.layers.4.|is not in the file"},
    {llama, "{\"num_hidden_layers\": 1024}", "model.layers.4.|is not in the file"},
    {llama, "{\"num_hidden_layers\": 100000}", "\"num_hidden_layers\" is 100000"},
    {llama, "{\"num_hidden_layers\": 0}", "\"num_hidden_layers\" is 0"},
    {llama, "{\"vocab_size\": 1000}", "embed_tokens.weight|[1024, 128]|[1000, 128]"},
    {llama, "{\"vocab_size\": 16777216}", "embed_tokens.weight"},
    {llama, "{\"max_position_embeddings\": 0}", "\"max_position_embeddings\" is 0"},
    {llama, "{\"max_position_embeddings\": 99999999999}", "\"max_position_embeddings\""},
    {llama, "{\"rms_norm_eps\": -1}", "\"rms_norm_eps\""},
    {llama, "{\"rms_norm_eps\": null}", "\"rms_norm_eps\" is missing"},
    {llama, "{\"tie_word_embeddings\": 1}", "\"tie_word_embeddings\" must be true or false"},
    {llama, "{\"tie_word_embeddings\": false}", "lm_head.weight|is not in the file"},
    /* the delta net */
    {qwen35, "{\"linear_num_key_heads\": 0}", "\"linear_num_key_heads\" is 0"},
    {qwen35, "{\"linear_num_value_heads\": 0}", "\"linear_num_value_heads\" is 0"},
    {qwen35, "{\"linear_num_key_heads\": 3}", "4 value heads|3 key heads"},
    {qwen35, "{\"linear_num_value_heads\": null}", "\"linear_num_value_heads\" is missing"},
    {qwen35, "{\"linear_key_head_dim\": 0}", "\"linear_key_head_dim\" is 0"},
    {qwen35, "{\"linear_value_head_dim\": 1000000}", "\"linear_value_head_dim\" is 1000000"},
    {qwen35, "{\"linear_conv_kernel_dim\": 1}", "\"linear_conv_kernel_dim\" is 1"},
    {qwen35, "{\"linear_conv_kernel_dim\": 5}", "conv1d.weight"},
    {qwen35, "{\"linear_num_value_heads\": 1024, \"linear_value_head_dim\": 1024}", "in_proj_qkv.weight"},
    /* layers */
    {qwen35, "{\"layer_types\": [\"full_attention\"]}", "\"layer_types\" must list 8 layers"},
    {qwen35, "{\"layer_types\": []}", "\"layer_types\" must list 8 layers"},
    {qwen35, "{\"layer_types\": \"full_attention\"}", "\"layer_types\" must list 8 layers"},
    {qwen35, "{\"layer_types\": [\"full_attention\", \"mamba\", 1, 2, 3, 4, 5, 6]}",
     "layer_types[1] is \"mamba\""},
    {qwen35, "{\"layer_types\": [null, 1, 2, 3, 4, 5, 6, 7]}", "layer_types[0]"},
    {qwen35, "{\"layer_types\": null, \"full_attention_interval\": 0}", "\"full_attention_interval\" is 0"},
    {qwen35, "{\"layer_types\": null, \"full_attention_interval\": 3}", "model.layers.2.self_attn"},
    {gemma3, "{\"layer_types\": [\"full_attention\"]}", "\"layer_types\" must list 4 layers"},
    {gemma3, "{\"layer_types\": [\"chunked\", 1, 2, 3]}", "layer_types[0] is \"chunked\""},
    {gemma3, "{\"sliding_window\": 0}", "\"sliding_window\" is 0"},
    {gemma3, "{\"sliding_window\": null}", "\"sliding_window\" is missing"},
    {gemma3, "{\"query_pre_attn_scalar\": 0}", "\"query_pre_attn_scalar\""},
};

static void test_configurations(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        make_dir(configs[i].model, configs[i].patch);
        refused("model", configs[i].patch, configs[i].words);
    }
}

/* ---- Hugging Face directories: the header of the weights changed ------------------------------------------
 */

/* The fixture's config with its weights' header patched: members of `patch` replace entries, null removes. */
static void make_weights(const char *model, const char *patch_text)
{
    char path[1200];
    size_t len;
    make_dir(model, "{}");
    snprintf(path, sizeof path, "%s/model.safetensors", fixture(model));
    char *whole = read_whole(path, &len);
    assert_non_null(whole);
    uint64_t n;
    memcpy(&n, whole, sizeof n);
    json_t *header = json_loadb(whole + 8, (size_t)n, 0, NULL), *patch = json_loads(patch_text, 0, NULL);
    assert_true(header && patch);
    const char *key;
    json_t *value;
    json_object_foreach(patch, key, value)
    {
        assert_non_null(json_object_get(header, key));
        if (json_is_null(value))
            json_object_del(header, key);
        else
            apply(json_object_get(header, key), value);
    }
    char *text = json_dumps(header, JSON_COMPACT);
    struct str file = {0};
    put(&file, 8, strlen(text));
    str_adds(&file, text);
    str_add(&file, whole + 8 + n, len - 8 - (size_t)n);
    snprintf(path, sizeof path, "%s/model.safetensors", temp_path("model"));
    unlink(path);
    temp_write("model/model.safetensors", file.data, file.len);
    str_free(&file);
    free(text);
    free(whole);
    json_decref(header);
    json_decref(patch);
}

static const struct {
    const char *model, *patch, *words;
} headers[] = {
    {llama, "{\"model.layers.2.mlp.up_proj.weight\": null}",
     "model.layers.2.mlp.up_proj.weight|is not in the file"},
    {llama, "{\"model.embed_tokens.weight\": null}", "model.embed_tokens.weight|is not in the file"},
    {llama, "{\"model.norm.weight\": null}", "model.norm.weight|is not in the file"},
    {qwen35, "{\"model.layers.0.linear_attn.A_log\": null}",
     "model.layers.0.linear_attn.A_log|is not in the file"},
    {qwen35, "{\"model.layers.3.self_attn.k_norm.weight\": null}", "model.layers.3.self_attn.k_norm.weight"},
    {llama, "{\"model.layers.0.self_attn.q_proj.weight\": {\"dtype\": \"F8_E4M3\", \"shape\": [128, 256]}}",
     "model.layers.0.self_attn.q_proj.weight|F8_E4M3, which sluice does not read"},
    {llama, "{\"model.layers.0.self_attn.q_proj.weight\": {\"dtype\": \"I16\"}}",
     "model.layers.0.self_attn.q_proj.weight|type I16"},
    {llama, "{\"model.layers.0.self_attn.q_proj.weight\": {\"shape\": [64, 256]}}",
     "model.layers.0.self_attn.q_proj.weight|[64, 256]|[128, 128]"},
    {llama, "{\"model.layers.0.self_attn.q_proj.weight\": {\"shape\": [16384]}}",
     "model.layers.0.self_attn.q_proj.weight|[16384]"},
    {llama, "{\"model.layers.0.self_attn.q_proj.weight\": {\"shape\": [2, 2, 2, 2, 1024]}}",
     "model.layers.0.self_attn.q_proj.weight|has 5 dimensions"},
    {llama, "{\"model.layers.1.input_layernorm.weight\": {\"dtype\": \"F32\", \"shape\": [64]}}",
     "model.layers.1.input_layernorm.weight|[64]|128 elements"},
    {llama, "{\"model.layers.1.input_layernorm.weight\": {\"dtype\": \"I64\", \"shape\": [32]}}",
     "model.layers.1.input_layernorm.weight"},
    {llama, "{\"model.layers.1.input_layernorm.weight\": {\"dtype\": \"I16\"}}",
     "model.layers.1.input_layernorm.weight|type I16"},
    {qwen35, "{\"model.layers.1.linear_attn.conv1d.weight\": {\"dtype\": \"F32\", \"shape\": [256, 1, 2]}}",
     "model.layers.1.linear_attn.conv1d.weight|[256, 1, 2]|1024 elements"},
};

static void test_weights(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        make_weights(headers[i].model, headers[i].patch);
        refused("model", headers[i].patch, headers[i].words);
    }
}

/* ---- GGUF ------------------------------------------------------------------------------------------------
 */

struct gguf_edit {
    const char *drop;     /* this tensor or key is left out */
    const char *key;      /* this key gets another value: */
    const char *text;     /*   this, */
    const uint8_t *bools; /*   or these [n_bools], */
    int n_bools;          /* */
    int64_t number;       /*   or this number */
    const char *tensor;   /* this tensor gets another shape [2], of as many elements or fewer */
    int64_t shape[2];     /* */
    enum dtype dtype;     /* and type; DT_F32 stands for F32 */
};

/* A copy of the fixture with one thing changed. */
static void make_gguf(const char *from, const struct gguf_edit *edit)
{
    static const uint8_t zeros[1 << 20];
    struct model_file *f = model_file_open(fixture(from), &e);
    assert_non_null(f);
    struct gguf_writer *w = gguf_writer_open(temp_path("m.gguf"), &e);
    assert_non_null(w);
    for (int64_t i = 0; i < gguf_count(f->gguf); i++) {
        const char *key = gguf_key(f->gguf, i);
        bool changed =
            (edit->drop && strcmp(key, edit->drop) == 0) || (edit->key && strcmp(key, edit->key) == 0);
        if (!changed)
            gguf_writer_copy(w, f->gguf, i);
    }
    if (edit->key && edit->text)
        gguf_writer_str(w, edit->key, edit->text);
    else if (edit->key && edit->bools)
        gguf_writer_numbers(w, edit->key, GGUF_BOOL, edit->bools, (uint64_t)edit->n_bools);
    else if (edit->key)
        gguf_writer_number(w, edit->key, GGUF_I64, &edit->number);
    for (int i = 0; i < f->n_tensors; i++) {
        const struct tensor *t = &f->tensors[i];
        if (edit->tensor && strcmp(t->name, edit->tensor) == 0)
            gguf_writer_tensor(w, t->name, edit->dtype, 2, edit->shape);
        else if (!edit->drop || strcmp(t->name, edit->drop) != 0)
            gguf_writer_tensor(w, t->name, t->dtype, t->n_dims, t->shape);
    }
    if (gguf_writer_begin(w, &e))
        fail_msg("%s", e.msg);
    int at = 0;
    for (int i = 0; i < f->n_tensors; i++) {
        const struct tensor *t = &f->tensors[i];
        if (edit->drop && strcmp(t->name, edit->drop) == 0)
            continue;
        bool changed = edit->tensor && strcmp(t->name, edit->tensor) == 0;
        size_t n = gguf_writer_tensor_bytes(w, at);
        assert_true(n <= sizeof zeros);
        assert_int_equal(gguf_writer_data(w, at++, 0, changed ? zeros : t->data, n, &e), 0);
    }
    assert_int_equal(gguf_writer_finish(w, &e), 0);
    gguf_writer_close(w);
    model_file_close(f);
}

static const uint8_t three[3] = {1, 1, 0};
static const uint8_t all_linear[8] = {1, 1, 1, 1, 1, 1, 1, 1};
static const char gguf_qwen35[] = "gguf/qwen35-tiny-q8_0.gguf", gguf_llama[] = "gguf/llama-tiny-f16.gguf",
                  gguf_qwen3[] = "gguf/qwen3-tiny-q8_0.gguf";

static const struct {
    const char *from;
    struct gguf_edit edit;
    const char *words;
} ggufs[] = {
    {gguf_llama, {.key = "general.architecture", .text = "mamba"}, "\"mamba\"|llama"},
    {gguf_llama, {.key = "general.architecture", .text = "qwen35moe"}, "\"qwen35moe\""},
    {gguf_llama, {.key = "general.architecture", .number = 4}, "general.architecture"},
    {gguf_llama, {.drop = "general.architecture"}, "general.architecture"},
    {gguf_llama, {.key = "general.architecture", .text = "qwen2"}, "qwen2."},
    {gguf_llama, {.key = "llama.block_count", .number = 0}, "\"llama.block_count\" is 0"},
    {gguf_llama, {.key = "llama.block_count", .number = 5}, "blk.4.|is not in the file"},
    {gguf_llama, {.key = "llama.block_count", .number = INT64_MAX}, "\"llama.block_count\""},
    {gguf_llama, {.key = "llama.block_count", .text = "four"}, "\"llama.block_count\" must be an integer"},
    {gguf_llama, {.drop = "llama.block_count"}, "\"llama.block_count\" is missing"},
    {gguf_llama, {.key = "llama.attention.head_count", .number = 0}, "\"llama.attention.head_count\" is 0"},
    {gguf_llama,
     {.key = "llama.attention.head_count_kv", .number = 3},
     "4 attention heads|3 key-value heads"},
    {gguf_llama, {.key = "llama.embedding_length", .number = INT64_MIN}, "\"llama.embedding_length\""},
    {gguf_llama,
     {.key = "llama.embedding_length", .number = 256},
     "token_embd.weight|[1024, 128]|[1024, 256]"},
    {gguf_llama, {.key = "llama.rope.scaling.type", .text = "yarn"}, "rope scaling type \"yarn\""},
    {gguf_llama, {.key = "llama.rope.scaling.type", .text = "linear"}, "llama.rope.scaling.factor"},
    {gguf_llama,
     {.key = "llama.rope.dimension_count", .number = 1000},
     "\"llama.rope.dimension_count\" is 1000"},
    {gguf_llama, {.key = "llama.rope.dimension_count", .number = 7}, "rotary dimension 7"},
    {gguf_llama, {.key = "llama.expert_count", .number = 8}, "mixture of experts|8"},
    {gguf_llama, {.drop = "blk.2.ffn_up.weight"}, "blk.2.ffn_up.weight|is not in the file"},
    {gguf_llama, {.drop = "output_norm.weight"}, "output_norm.weight|is not in the file"},
    {gguf_llama, {.drop = "token_embd.weight"}, "token_embd.weight|is not in the file"},
    {gguf_llama,
     {.tensor = "blk.0.attn_k.weight", .shape = {128, 64}, .dtype = DT_F16},
     "blk.0.attn_k.weight|[128, 64]|[64, 128]"},
    {gguf_llama,
     {.tensor = "blk.0.attn_k.weight", .shape = {64, 128}, .dtype = DT_I32},
     "blk.0.attn_k.weight|type I32"},
    {gguf_llama,
     {.tensor = "blk.1.attn_norm.weight", .shape = {1, 64}, .dtype = DT_F32},
     "blk.1.attn_norm.weight|[1, 64]|128 elements"},
    {gguf_qwen3, {.drop = "blk.0.attn_q_norm.weight"}, "blk.0.attn_q_norm.weight|is not in the file"},
    {gguf_qwen3, {.key = "qwen3.attention.key_length", .number = 47}, "head dimension 47"},
    {gguf_qwen35, {.key = "qwen35.ssm.group_count", .number = 0}, "\"qwen35.ssm.group_count\" is 0"},
    {gguf_qwen35, {.key = "qwen35.ssm.group_count", .number = 3}, "4 value heads|3 key heads"},
    {gguf_qwen35, {.key = "qwen35.ssm.time_step_rank", .number = 0}, "\"qwen35.ssm.time_step_rank\" is 0"},
    {gguf_qwen35, {.key = "qwen35.ssm.inner_size", .number = 130}, "qwen35.ssm.inner_size|130"},
    {gguf_qwen35, {.key = "qwen35.ssm.inner_size", .number = 1 << 20}, "blk.0.attn_qkv.weight"},
    {gguf_qwen35, {.key = "qwen35.ssm.state_size", .number = 1 << 30}, "\"qwen35.ssm.state_size\""},
    {gguf_qwen35, {.drop = "qwen35.ssm.inner_size"}, "\"qwen35.ssm.inner_size\" is missing"},
    {gguf_qwen35, {.key = "qwen35.ssm.conv_kernel", .number = 0}, "\"qwen35.ssm.conv_kernel\" is 0"},
    {gguf_qwen35,
     {.key = "qwen35.attention.recurrent_layers", .bools = three, .n_bools = 3},
     "qwen35.attention.recurrent_layers|3 layers|8"},
    {gguf_qwen35,
     {.key = "qwen35.attention.recurrent_layers", .bools = all_linear, .n_bools = 8},
     "blk.3.attn_qkv.weight|is not in the file"},
    {gguf_qwen35,
     {.key = "qwen35.full_attention_interval", .number = 0},
     "\"qwen35.full_attention_interval\" is 0"},
    {gguf_qwen35,
     {.key = "qwen35.nextn_predict_layers", .number = 8},
     "\"qwen35.nextn_predict_layers\" is 8"},
    {gguf_qwen35, {.drop = "blk.0.ssm_a"}, "blk.0.ssm_a|is not in the file"},
    {gguf_qwen35, {.drop = "blk.4.ssm_dt.bias"}, "blk.4.ssm_dt.bias|is not in the file"},
    {gguf_qwen35, {.drop = "blk.7.post_attention_norm.weight"}, "blk.7.post_attention_norm.weight"},
    {gguf_qwen35,
     {.tensor = "blk.0.ssm_conv1d.weight", .shape = {256, 3}, .dtype = DT_F32},
     "blk.0.ssm_conv1d.weight|[256, 3]|1024 elements"},
    {gguf_qwen35,
     {.tensor = "blk.0.ssm_alpha.weight", .shape = {2, 128}, .dtype = DT_Q8_0},
     "blk.0.ssm_alpha.weight|[2, 128]|[4, 128]"},
};

static void test_ggufs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ggufs / sizeof ggufs[0]; i++) {
        const struct gguf_edit *edit = &ggufs[i].edit;
        make_gguf(ggufs[i].from, edit);
        refused("m.gguf", edit->key ? edit->key : edit->drop ? edit->drop : edit->tensor, ggufs[i].words);
    }
}

/* The copies themselves are not what is refused. */
static void test_unchanged_copies_open(void **state)
{
    (void)state;
    struct backend *b = backend_cpu(NULL, 1, &e);
    make_gguf(gguf_qwen35, &(struct gguf_edit){0});
    make_dir(qwen35, "{}");
    const char *const names[] = {"m.gguf", "model"};
    for (int i = 0; i < 2; i++) {
        struct model_file *f = model_file_open(temp_path(names[i]), &e);
        struct model *m = f ? model_open(f, b, MODEL_MTP, &e) : NULL;
        if (!m)
            fail_msg("%s", e.msg);
        assert_int_equal(model_load(m, NULL, NULL, &e), 0);
        model_free(m);
        model_file_close(f);
    }
    b->ops->destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unchanged_copies_open),
        cmocka_unit_test(test_configurations),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_ggufs),
    };
    return cmocka_run_group_tests(tests, temp_setup, temp_teardown);
}
