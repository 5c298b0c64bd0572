/* A model as the requests of the API need it: engine, tokenizer, chat template, sampling defaults and the
 * names it goes by. For the commands that answer such requests, over HTTP (serve) or from a file (batch). */
#ifndef SLUICE_CLI_SERVED_MODEL_H
#define SLUICE_CLI_SERVED_MODEL_H

#include "api/model.h"
#include "cli/load.h"
#include "cli/options.h"

struct served_model {
    /* what the command line says */
    const char *path, *template_path, *generation_config;
    struct option_list names;
    struct sluice_options engine_options;
    uint64_t kv_bytes, state_cache_bytes;
    double swap_gib;
    bool prefix_caching, auto_tool_choice;
    const char *override_generation_config, *default_template_kwargs, *logprobs_mode; /* JSON, JSON, name */
    const char *structured_outputs_config;                                            /* JSON */
    int reasoning_budget;                                                             /* -1 = none */
    /* what loading makes of it; api's limits and flags are options too */
    struct sluice *engine;
    struct tokenizer *tokenizer;
    struct chat_template *template;
    char *template_text;
    json_t *template_kwargs;
    struct api_model api;
};

/* Entries of an option table for the fields of `struct served_model m` that shape the answers. */
#define ANSWER_OPTIONS(m)                                                                       \
    {.name = "served-model-name",                                                               \
     .list = &(m).names,                                                                        \
     .initial = "MODEL as written",                                                             \
     .value = "NAME",                                                                           \
     .help = "names that requests may use for the model; the first one is reported"},           \
        {.name = "chat-template",                                                               \
         .text = &(m).template_path,                                                            \
         .initial = "the model's",                                                              \
         .value = "FILE",                                                                       \
         .help = "Jinja template for chats: a file, or the template itself"},                   \
        {.name = "default-chat-template-kwargs",                                                \
         .text = &(m).default_template_kwargs,                                                  \
         .value = "JSON",                                                                       \
         .help = "variables for the template; requests may set others over them"},              \
        {.name = "trust-request-chat-template",                                                 \
         .flag = &(m).api.trust_request_template,                                               \
         .help = "requests may bring a chat_template, and so write any control token"},         \
        {.name = "response-role",                                                               \
         .text = &(m).api.response_role,                                                        \
         .initial = "assistant",                                                                \
         .value = "NAME",                                                                       \
         .help = "role of the answers to chats"},                                               \
        {.name = "exclude-tools-when-tool-choice-none",                                         \
         .flag = &(m).api.exclude_tools_when_none,                                              \
         .help = "tool_choice none keeps the tools out of the prompt too"},                     \
        {.name = "return-tokens-as-token-ids",                                                  \
         .flag = &(m).api.tokens_as_ids,                                                        \
         .help = "log-probabilities name tokens as token_id:N where requests do not say"},      \
        {.name = "override-generation-config",                                                  \
         .text = &(m).override_generation_config,                                               \
         .value = "JSON",                                                                       \
         .help = "sampling defaults over the model's; max_new_tokens caps every request"},      \
        {.name = "logprobs-mode",                                                               \
         .text = &(m).logprobs_mode,                                                            \
         .choices = "raw_logprobs",                                                             \
         .value = "MODE",                                                                       \
         .help = "log-probabilities are the model's own, before penalties and temperature"},    \
        {.name = "generation-config",                                                           \
         .text = &(m).generation_config,                                                        \
         .value = "WHICH",                                                                      \
         .help = "sampling defaults: auto = the model's generation config, vllm = none of it, " \
                 "or a folder with another generation_config.json"},                            \
        {.name = "max-logprobs",                                                                \
         .num = &(m).api.limits.max_logprobs,                                                   \
         .min = 0,                                                                              \
         .max = SLUICE_MAX_LOGPROBS,                                                            \
         .auto_is = "all",                                                                      \
         .value = "N",                                                                          \
         .help = "the most alternatives a request may ask for at each token"},                  \
        {.name = "reasoning-parser",                                                            \
         .text = &(m).api.reasoning_parser,                                                     \
         .choices = REASONING_PARSERS,                                                          \
         .initial = "auto",                                                                     \
         .value = "NAME",                                                                       \
         .help = "tells thoughts from answers; auto = as the chat template shows, deepseek_r1 " \
                 "= answers begin inside a thought"},                                           \
        {.name = "tool-call-parser",                                                            \
         .text = &(m).api.tool_call_parser,                                                     \
         .choices = TOOL_PARSERS,                                                               \
         .initial = "auto",                                                                     \
         .value = "NAME",                                                                       \
         .help = "the format of tool calls; auto = as the chat template prints them"},          \
        {.name = "reasoning-budget",                                                            \
         .num = &(m).reasoning_budget,                                                          \
         .min = -1,                                                                             \
         .max = 1e9,                                                                            \
         .initial = "none",                                                                     \
         .value = "N",                                                                          \
         .help = "tokens of a thought where a request has no thinking_token_budget; -1 = any"}, \
        {.name = "structured-outputs-config",                                                   \
         .text = &(m).structured_outputs_config,                                                \
         .value = "JSON",                                                                       \
         .help = "{\"disable_any_whitespace\": true}: compact JSON where requests do not say"}, \
        {.name = "tool-strict-level",                                                           \
         .text = &(m).api.tool_strictness,                                                      \
         .choices = TOOL_STRICTNESS,                                                            \
         .initial = "off",                                                                      \
         .value = "LEVEL",                                                                      \
         .help = "holds the calls that a model chooses to make to the tools' names (function) " \
                 "or to their schemas (parameter), as if all were marked strict"},              \
        {.name = "enable-auto-tool-choice",                                                     \
         .flag = &(m).auto_tool_choice,                                                         \
         .help = "the model decides whether it calls the tools of a request"},                  \
        {.name = "enable-per-request-metrics",                                                  \
         .flag = &(m).api.request_metrics,                                                      \
         .help = "answers carry their times and what was computed for them, as `metrics`"},     \
    {                                                                                           \
        .name = "enable-prompt-tokens-details", .flag = &(m).api.prompt_tokens_details,         \
        .help = "usage says how many prompt tokens came from the prefix cache"                  \
    }

/* Entries for what is kept of prompts between requests. */
#define PREFIX_CACHE_OPTIONS(m)                                                      \
    {.name = "enable-prefix-caching",                                                \
     .flag = &(m).prefix_caching,                                                    \
     .help = "keep what was computed of a prompt for the next that begins alike"},   \
    {                                                                                \
        .name = "state-cache-memory-bytes", .big = &(m).state_cache_bytes,           \
        .initial = "a tenth of what the weights leave", .value = "N",                \
        .help = "recurrent states kept for the prefix cache (models that have them)" \
    }

/* Entries for prefixes on disk. */
#define DISK_CACHE_OPTIONS(o)                                                                             \
    {.name = "kv-offload-dir",                                                                            \
     .text = &(o).kv_offload_dir,                                                                         \
     .initial = "none",                                                                                   \
     .value = "DIR",                                                                                      \
     .help =                                                                                              \
         "what the prefix cache gives up goes to files here, and comes back, also after a restart. They " \
         "hold the tokens of prompts, readable by this user alone"},                                      \
    {                                                                                                     \
        .name = "kv-offload-bytes", .big = &(o).kv_offload_bytes,                                         \
        .initial = "16 GiB, or half of the free disk", .value = "N",                                      \
        .help = "bound of these files; the ones used least recently go first"                             \
    }

/* The options' defaults. */
void served_model_init(struct served_model *m);
/* Opens and loads what the options name, and prints the memory plan. -1 after printing the error as
 * "sluice COMMAND: …"; what was loaded until then is freed by served_model_free. */
int served_model_load(const char *command, struct served_model *m);
void served_model_free(struct served_model *m);

#endif
