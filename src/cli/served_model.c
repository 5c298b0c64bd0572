#include "cli/served_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/salt.h"
#include "base/log.h"
#include "base/mem.h"

#define MAX_TEMPLATE_BYTES ((size_t)1 << 20)

void served_model_init(struct served_model *m)
{
    *m = (struct served_model){.generation_config = "auto", .prefix_caching = true, .auto_tool_choice = true};
    api_limits_init(&m->api.limits);
}

/* The whole text of a --chat-template FILE. */
static char *read_template(const char *path, size_t *len, struct err *e)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        err_set(e, ERR_IO, "--chat-template: cannot open %s: %m", path);
        return NULL;
    }
    char *text = mem_alloc(MAX_TEMPLATE_BYTES + 1);
    *len = fread(text, 1, MAX_TEMPLATE_BYTES + 1, f);
    bool failed = ferror(f) != 0;
    fclose(f);
    if (failed || *len > MAX_TEMPLATE_BYTES) {
        err_set(e, ERR_INVALID, "--chat-template: %s %s", path,
                failed ? "cannot be read" : "is larger than a template may be (1 MiB)");
        free(text);
        return NULL;
    }
    return text;
}

/* The template that the command line or the checkpoint gives. None is fine, then only completions work; a
 * checkpoint's that does not parse is warned of and left out, the command line's is an error. */
static int load_template(struct served_model *m, const struct model_file *file, struct err *e)
{
    if (m->template_path) {
        size_t len;
        char *text = read_template(m->template_path, &len, e);
        m->template = text ? chat_template_parse(text, len, e) : NULL;
        bool parsed = m->template != NULL;
        if (text && !parsed)
            err_prefix(e, "--chat-template %s", m->template_path);
        free(text);
        return parsed ? 0 : -1;
    }
    if (!file->chat_template) {
        log_warn("the model has no chat template: /v1/chat/completions will refuse (--chat-template FILE "
                 "adds one)");
        return 0;
    }
    m->template = chat_template_parse(file->chat_template, strlen(file->chat_template), e);
    if (!m->template)
        log_warn("the model's chat template is not usable, so /v1/chat/completions will refuse: %s", e->msg);
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
    o->no_prefix_cache = !m->prefix_caching;
    struct model_file *file = model_file_open(m->path, &e);
    if (!file)
        goto fail;
    m->tokenizer = tokenizer_open(file, &e);
    if (!m->tokenizer || load_template(m, file, &e))
        goto fail;
    sampling_defaults_read(&m->api.defaults, strcmp(m->generation_config, "vllm") == 0 ? NULL : file);
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
    tokenizer_free(m->tokenizer);
    option_list_free(&m->names);
}
