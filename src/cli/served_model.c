#include "cli/served_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/salt.h"
#include "base/log.h"
#include "base/mem.h"

#define MAX_TEXT_BYTES ((size_t)1 << 20) /* of a template or a JSON file */

void served_model_init(struct served_model *m)
{
    *m = (struct served_model){.generation_config = "auto",
                               .logprobs_mode = "raw_logprobs",
                               .prefix_caching = true,
                               .reasoning_budget = -1,
                               .auto_tool_choice = true};
    api_limits_init(&m->api.limits);
}

/* The whole text of a file that an option names, at most MAX_TEXT_BYTES. NULL and *e. */
static char *read_text(const char *option, const char *path, size_t *len, struct err *e)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        err_set(e, ERR_IO, "%s: cannot open %s: %m", option, path);
        return NULL;
    }
    char *text = mem_alloc(MAX_TEXT_BYTES + 1);
    *len = fread(text, 1, MAX_TEXT_BYTES + 1, f);
    bool failed = ferror(f) != 0;
    fclose(f);
    if (failed || *len > MAX_TEXT_BYTES) {
        err_set(e, ERR_INVALID, "%s: %s %s", option, path,
                failed ? "cannot be read" : "is larger than such a file may be (1 MiB)");
        free(text);
        return NULL;
    }
    text[*len] = '\0';
    return text;
}

/* The template that the command line or the checkpoint gives. None is fine, then only completions work; a
 * checkpoint's that does not parse is warned of and left out, the command line's is an error. */
static int load_template(struct served_model *m, const struct model_file *file, struct err *e)
{
    if (m->template_path) {
        /* a template on the command line itself holds what no path does */
        bool is_text = strchr(m->template_path, '{') != NULL;
        size_t len = strlen(m->template_path);
        m->template_text =
            is_text ? mem_strdup(m->template_path) : read_text("--chat-template", m->template_path, &len, e);
        m->template = m->template_text ? chat_template_parse(m->template_text, len, e) : NULL;
        if (m->template_text && !m->template)
            err_prefix(e, "--chat-template %s", is_text ? "(the text given)" : m->template_path);
        return m->template ? 0 : -1;
    }
    if (!file->chat_template) {
        log_warn("the model has no chat template: /v1/chat/completions will refuse (--chat-template FILE "
                 "adds one)");
        return 0;
    }
    m->template_text = mem_strdup(file->chat_template);
    m->template = chat_template_parse(file->chat_template, strlen(file->chat_template), e);
    if (!m->template)
        log_warn("the model's chat template is not usable, so /v1/chat/completions will refuse: %s", e->msg);
    return 0;
}

/* A JSON object given as an option's text. */
static json_t *option_json(const char *option, const char *text, struct err *e)
{
    json_error_t why;
    json_t *v = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    if (json_is_object(v))
        return v;
    json_decref(v);
    err_set(e, ERR_INVALID, "%s: %.200s is not a JSON object%s%s", option, text, v ? "" : ": ",
            v ? "" : why.text);
    return NULL;
}

/* Sampling defaults: the model's or a folder's generation config, and what the command line sets over them.
 */
static int load_defaults(struct served_model *m, const struct model_file *file, struct err *e)
{
    const char *which = m->generation_config;
    bool own = strcmp(which, "auto") == 0, folder = !own && strcmp(which, "vllm") != 0;
    sampling_defaults_read(&m->api.defaults, own ? file : NULL);
    json_t *config = NULL;
    int failed = 0;
    if (folder) {
        char path[4096];
        size_t len;
        snprintf(path, sizeof path, "%s/generation_config.json", which);
        char *text = read_text("--generation-config", path, &len, e);
        config = text ? option_json("--generation-config", text, e) : NULL;
        free(text);
        failed = !config || sampling_defaults_override(&m->api.defaults, config, false, e);
        if (config && failed)
            err_prefix(e, "--generation-config %s", which);
        json_decref(config);
    }
    if (!failed && m->override_generation_config) {
        config = option_json("--override-generation-config", m->override_generation_config, e);
        failed = !config || sampling_defaults_override(&m->api.defaults, config, true, e);
        if (config && failed)
            err_prefix(e, "--override-generation-config");
        json_decref(config);
    }
    return failed ? -1 : 0;
}

/* The keys of --structured-outputs-config. Grammars are this server's own, whatever back end is named. */
static int load_structured_config(struct served_model *m, struct err *e)
{
    static const char option[] = "--structured-outputs-config";
    m->api.limits_thoughts = m->reasoning_budget >= 0;
    m->api.thinking_budget = m->reasoning_budget;
    if (!m->structured_outputs_config)
        return 0;
    json_t *config = option_json(option, m->structured_outputs_config, e), *v;
    const char *key;
    int failed = config ? 0 : -1;
    json_object_foreach(config, key, v)
    {
        if (strcmp(key, "disable_any_whitespace") == 0 && json_is_boolean(v))
            m->api.compact_json = json_is_true(v);
        else if (strcmp(key, "backend") != 0 || !json_is_string(v))
            failed =
                err_set(e, ERR_INVALID,
                        "%s knows disable_any_whitespace (true or false) and backend (a name), not \"%.60s\" "
                        "with this value",
                        option, key);
    }
    json_decref(config);
    return failed;
}

static int load_template_kwargs(struct served_model *m, struct err *e)
{
    const char *key;
    json_t *v;
    if (!m->default_template_kwargs)
        return 0;
    m->template_kwargs = option_json("--default-chat-template-kwargs", m->default_template_kwargs, e);
    if (!m->template_kwargs)
        return -1;
    json_object_foreach(m->template_kwargs, key, v) if (!api_may_set_variable(key)) return err_set(
        e, ERR_INVALID, "--default-chat-template-kwargs may not set %.60s", key);
    return 0;
}

/* Where prompts are kept on disk, those with a cache salt can only be found again with the same key. */
static void use_salt_key(const struct sluice_options *o)
{
    struct err e = {0};
    char path[4096];
    if (!o->kv_offload_dir)
        return;
    if (o->no_prefix_cache)
        log_warn("--kv-offload-dir does nothing without --enable-prefix-caching");
    else if (snprintf(path, sizeof path, "%s/salt.key", o->kv_offload_dir) < (int)sizeof path &&
             salt_use_key_file(path, &e))
        log_warn("prompts with a cache_salt will not be found on disk after a restart: %s", e.msg);
}

int served_model_load(const char *command, struct served_model *m)
{
    struct err e = {0};
    struct sluice_options *o = &m->engine_options;
    if (o->max_model_len < 0)
        o->max_model_len = 0;
    o->kv_cache_bytes = m->kv_bytes;
    o->state_cache_bytes = m->state_cache_bytes;
    o->swap_bytes = swap_bytes_of(m->swap_gib);
    o->no_prefix_cache = !m->prefix_caching;
    struct model_file *file = model_file_open(m->path, &e);
    if (!file)
        goto fail;
    m->tokenizer = tokenizer_open(file, &e);
    if (!m->tokenizer || load_template(m, file, &e) || load_defaults(m, file, &e) ||
        load_template_kwargs(m, &e) || load_structured_config(m, &e))
        goto fail;
    if (m->api.limits.max_logprobs < 0)
        m->api.limits.max_logprobs = SLUICE_MAX_LOGPROBS;
    m->engine = load_engine(command, file, o, true);
    if (!m->engine) {
        e.msg[0] = '\0'; /* load_engine has said why */
        goto fail;
    }
    use_salt_key(o);
    model_file_close(file);
    m->api.engine = m->engine;
    m->api.tokenizer = m->tokenizer;
    m->api.template = m->template;
    m->api.template_text = m->template_text;
    m->api.template_kwargs = m->template_kwargs;
    /* without --served-model-name the model is called as its path is written, as clients of vLLM expect */
    m->api.names = m->names.n ? m->names.values : &m->path;
    m->api.n_names = m->names.n ? m->names.n : 1;
    m->api.root = m->path;
    m->api.no_auto_tool_choice = !m->auto_tool_choice;
    api_model_init(&m->api);
    if (m->template)
        log_info("reasoning parser: %s; tool-call parser: %s", reasoning_format_name(m->api.reasoning),
                 tool_format_name(m->api.tool_format));
    return 0;
fail:
    if (e.msg[0])
        fprintf(stderr, "sluice %s: %s\n", command, e.msg);
    model_file_close(file);
    return -1;
}

void served_model_free(struct served_model *m)
{
    sluice_close(m->engine);
    api_model_free(&m->api);
    chat_template_free(m->template);
    free(m->template_text);
    json_decref(m->template_kwargs);
    tokenizer_free(m->tokenizer);
    option_list_free(&m->names);
}
