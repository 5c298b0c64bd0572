/* `sluice run MODEL`: chat in the terminal, or answer one prompt (--prompt, or what is piped in) on stdout.
 * No server: this thread runs the engine's steps itself and prints what each one adds. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "api/model.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/commands.h"
#include "cli/load.h"
#include "cli/options.h"
#include "cli/session.h"
#include "ops/cpu/limits.h"

#define MAX_INPUT ((size_t)64 << 20) /* bytes of one prompt; far above any context */

static volatile sig_atomic_t interrupted;
static int interrupt_event =
    -1; /* eventfd that Ctrl-C raises: a wait for input cannot miss it as a read can */

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
    int keep = errno;
    if (eventfd_write(interrupt_event, 1) < 0) {
        /* the flag is set: nothing else can be done here */
    }
    errno = keep;
}

struct run {
    struct session session;
    bool interactive, stats;
    const char *cpu_level;
    double read_bandwidth; /* bytes a second; 0 = not measured yet */
};

/* --- an answer ------------------------------------------------------------------------------------ */

static void print_piece(void *arg, const char *text, size_t len)
{
    (void)arg;
    fwrite(text, 1, len, stdout);
    fflush(stdout);
}

/* "[42 tokens, 81.3 tok/s; first after 0.12 s (30 prompt tokens); stream 8.1 GB/s = 63 % of …]". */
static void print_stats(struct run *r, const struct session_answer *a)
{
    struct cpu_limits limits;
    if (r->read_bandwidth == 0 &&
        cpu_limits_measure(r->cpu_level, sluice_plan(r->session.engine)->threads, &limits, NULL) == 0)
        r->read_bandwidth = 1e9 * limits.read_gbs;
    fprintf(stderr, "[%d tokens", a->tokens);
    if (a->tokens > 1 && a->decode_seconds > 0)
        fprintf(stderr, ", %.1f tok/s", (a->tokens - 1) / a->decode_seconds);
    if (a->tokens > 0)
        fprintf(stderr, "; first after %.2f s (%d prompt tokens, %d cached)", a->first_seconds,
                a->prompt_tokens, a->cached_tokens);
    if (a->tokens > 1 && a->decode_seconds > 0) {
        double rate = a->decode_bytes / a->decode_seconds;
        fprintf(stderr, "; stream %.2f GB/s", rate / 1e9);
        if (r->read_bandwidth > 0)
            fprintf(stderr, " = %.0f %% of the memory's %.2f", 100 * rate / r->read_bandwidth,
                    r->read_bandwidth / 1e9);
    }
    fprintf(stderr, "%s]\n",
            a->finish == SLUICE_ABORTED  ? "; stopped"
            : a->finish == SLUICE_LENGTH ? "; cut at the length limit"
                                         : "");
}

static void forget_interrupt(void)
{
    eventfd_t n;
    interrupted = 0;
    if (interrupt_event >= 0 && eventfd_read(interrupt_event, &n) < 0) {
        /* it was not raised */
    }
}

/* Waits for a line on stdin (which is unbuffered) or Ctrl-C. false = Ctrl-C. */
static bool wait_for_line(void)
{
    struct pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {interrupt_event, POLLIN, 0}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR)
        ;
    return !(fds[1].revents & POLLIN);
}

/* One turn. Returns 0, or -1 after saying why there is no answer. */
static int answer(struct run *r, const char *text, size_t len)
{
    struct session_answer a;
    struct err e;
    forget_interrupt();
    if (session_ask(&r->session, text, len, print_piece, NULL, &a, &e)) {
        fprintf(stderr, "sluice run: %s\n", e.msg);
        return -1;
    }
    fputc('\n', stdout);
    fflush(stdout);
    if (a.forgotten)
        fprintf(stderr, "(the context was full: the oldest %d messages are forgotten)\n", a.forgotten);
    if (r->stats)
        print_stats(r, &a);
    return 0;
}

/* --- input ---------------------------------------------------------------------------------------- */

/* All of stdin. NULL (and a message) if it is more than MAX_INPUT or cannot be read. */
static char *read_stdin(size_t *len)
{
    struct str s = {0};
    char chunk[65536];
    ssize_t n;
    while ((n = read(STDIN_FILENO, chunk, sizeof chunk)) > 0 || (n < 0 && errno == EINTR)) {
        if (n > 0)
            str_add(&s, chunk, (size_t)n);
        if (s.len > MAX_INPUT) {
            fprintf(stderr, "sluice run: the prompt on stdin is over %zu MiB\n", MAX_INPUT >> 20);
            str_free(&s);
            return NULL;
        }
    }
    if (n < 0) {
        fprintf(stderr, "sluice run: cannot read stdin: %s\n", strerror(errno));
        str_free(&s);
        return NULL;
    }
    *len = s.len;
    return str_take(&s);
}

enum line { LINE_READ, LINE_INTERRUPTED, LINE_END };

/* A line from the terminal; one that ends in a backslash goes on in the next. */
static enum line read_line(struct str *out)
{
    str_clear(out);
    const char *prompt = ">>> ";
    for (;;) {
        fputs(prompt, stderr);
        fflush(stderr);
        char *line = NULL;
        size_t cap = 0;
        bool stopped = !wait_for_line();
        ssize_t n = stopped ? -1 : getline(&line, &cap, stdin);
        if (n < 0) {
            free(line);
            stopped |= interrupted != 0;
            forget_interrupt();
            clearerr(stdin);
            fputc('\n', stderr);
            return stopped ? LINE_INTERRUPTED : LINE_END;
        }
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        bool more = n > 0 && line[n - 1] == '\\';
        str_add(out, line, (size_t)(more ? n - 1 : n));
        free(line);
        if (!more)
            return LINE_READ;
        str_addc(out, '\n');
        prompt = "... ";
    }
}

static void print_commands(void)
{
    fputs("  /system TEXT  forget the conversation and start with this system message\n"
          "  /clear        forget the conversation, keep the system message\n"
          "  /exit         leave (also Ctrl-D)\n"
          "  Ctrl-C stops an answer; a line ending in \\ goes on in the next\n",
          stderr);
}

static void chat(struct run *r, const char *system)
{
    struct str line = {0};
    char *own_system = NULL;
    int interrupts = 0;
    setvbuf(stdin, NULL, _IONBF, 0);
    forget_interrupt(); /* what came before there was a prompt */
    fputs("Type a message, or /help.\n", stderr);
    for (;;) {
        enum line got = read_line(&line);
        if (got == LINE_END || (got == LINE_INTERRUPTED && ++interrupts > 1))
            break;
        if (got == LINE_INTERRUPTED) {
            fputs("(Ctrl-C once more, Ctrl-D or /exit leaves)\n", stderr);
            continue;
        }
        interrupts = 0;
        const char *text = str_text(&line);
        if (line.len == 0) {
            continue;
        } else if (strcmp(text, "/exit") == 0 || strcmp(text, "/quit") == 0) {
            break;
        } else if (strcmp(text, "/clear") == 0) {
            session_reset(&r->session, system);
            fputs("(forgotten)\n", stderr);
        } else if (strncmp(text, "/system", 7) == 0 && (text[7] == ' ' || !text[7])) {
            free(own_system);
            const char *rest = text + 7 + strspn(text + 7, " ");
            system = own_system = *rest ? mem_strdup(rest) : NULL;
            session_reset(&r->session, system);
            fputs(system ? "(new conversation with this system message)\n"
                         : "(new conversation without a system message)\n",
                  stderr);
        } else if (text[0] == '/' && strcspn(text, " ") == line.len) {
            if (strcmp(text, "/help") != 0)
                fprintf(stderr, "unknown command %s\n", text);
            print_commands();
        } else {
            answer(r, text, line.len);
        }
    }
    free(own_system);
    str_free(&line);
}

/* --- the command ---------------------------------------------------------------------------------- */

/* The checkpoint's own sampling where it names one, else a moderate temperature: OpenAI's 1 is too wild for
 * the small models that terminals are used with. */
static struct sampling_defaults model_sampling(const struct model_file *file)
{
    struct sampling_defaults plain, own;
    sampling_defaults_read(&plain, NULL);
    sampling_defaults_read(&own, file);
    if (own.temperature == plain.temperature && own.top_p == plain.top_p && own.top_k == plain.top_k &&
        own.min_p == plain.min_p)
        own.temperature = 0.7;
    return own;
}

int cmd_run(int argc, char **argv)
{
    struct sluice_options engine = {.max_num_seqs = 1};
    const char *model = NULL, *prompt = NULL, *system = NULL;
    double temperature = 0, top_p = 0, min_p = 0;
    int top_k = 0, max_tokens = 0;
    uint64_t seed = 0;
    bool stats = false, verbose = false;
    struct {
        bool temperature, top_p, min_p, top_k, seed, stats;
    } given = {0};
    const struct option_positional words[] = {
        {"MODEL", &model, true, "a .gguf file, or a directory with config.json and safetensors"}, {0}};
    const struct option_spec options[] = {
        {.group = "Conversation"},
        {.name = "prompt",
         .alias = "p",
         .text = &prompt,
         .value = "TEXT",
         .help = "answer this on stdout and end; what is piped to stdin does the same"},
        {.name = "system", .text = &system, .value = "TEXT", .help = "system message"},
        {.name = "max-tokens",
         .alias = "n",
         .num = &max_tokens,
         .initial = "no limit",
         .value = "N",
         .help = "longest answer; the context always limits it"},
        {.name = "ctx",
         .alias = "c",
         .num = &engine.max_model_len,
         .initial = "the model's",
         .value = "N",
         .help = "context: tokens of the conversation with its answers; when full, the oldest are forgotten"},
        {.name = "stats",
         .flag = &stats,
         .given = &given.stats,
         .initial = "in a chat",
         .help = "after each answer its tokens/s, and the share of the memory's read bandwidth"},
        {.name = "verbose", .alias = "v", .flag = &verbose, .help = "print the memory plan"},
        {.group = "Sampling (defaults are the model's, else 0.7 for the temperature)"},
        {.name = "temperature",
         .alias = "t",
         .real = &temperature,
         .min = 0,
         .max = 100,
         .given = &given.temperature,
         .initial = "the model's",
         .value = "F",
         .help = "0 = always the most likely token"},
        {.name = "top-p",
         .real = &top_p,
         .min = 1e-6,
         .max = 1,
         .given = &given.top_p,
         .initial = "the model's",
         .value = "F",
         .help = "the most likely tokens that together have this probability; 1 = all"},
        {.name = "top-k",
         .num = &top_k,
         .given = &given.top_k,
         .initial = "the model's",
         .value = "N",
         .help = "the N most likely tokens; 0 = all"},
        {.name = "min-p",
         .real = &min_p,
         .min = 0,
         .max = 1,
         .given = &given.min_p,
         .initial = "the model's",
         .value = "F",
         .help = "tokens at least F times as likely as the most likely one; 0 = all"},
        {.name = "seed",
         .big = &seed,
         .given = &given.seed,
         .initial = "new each run",
         .value = "N",
         .help = "the same seed, prompt and settings give the same answer"},
        ENGINE_OPTIONS(engine),
        {0},
    };
    const struct option_command command = {
        "run", "Chats with a model in the terminal, or answers one prompt on stdout.", words, options};
    int status = options_parse(&command, argc, argv);
    if (status >= 0)
        return status;
    if (prompt && !*prompt)
        return options_usage_error(&command, "--prompt is empty");

    status = EXIT_FAILED;
    struct run r = {.interactive = !prompt && isatty(STDIN_FILENO)};
    r.stats = given.stats ? stats : r.interactive;
    r.cpu_level = engine.cpu_level;
    struct err e;
    struct model_file *file = NULL;
    struct tokenizer *tokenizer = NULL;
    struct chat_template *template = NULL;
    struct sluice *s = NULL;
    char *piped = NULL;
    size_t len = prompt ? strlen(prompt) : 0;

    log_set_level(LOG_LEVEL_WARN);
    if (!(file = model_file_open(model, &e)) || !(tokenizer = tokenizer_open(file, &e)))
        goto failed;
    if (file->chat_template &&
        !(template = chat_template_parse(file->chat_template, strlen(file->chat_template), &e))) {
        err_prefix(&e, "%s: chat template", model);
        goto failed;
    }
    if (!prompt && !r.interactive) {
        prompt = piped = read_stdin(&len);
        if (!piped)
            goto done;
        if (len == 0) {
            fprintf(stderr, "sluice run: stdin is empty: nothing to answer\n");
            goto done;
        }
    }
    struct sampling_defaults d = model_sampling(file);
    struct sluice_sampling sampling;
    sluice_sampling_init(&sampling);
    sampling.temperature = (float)(given.temperature ? temperature : d.temperature);
    sampling.top_p = (float)(given.top_p ? top_p : d.top_p);
    sampling.min_p = (float)(given.min_p ? min_p : d.min_p);
    sampling.top_k = given.top_k ? top_k : (int)d.top_k;
    sampling.repetition_penalty = (float)d.repetition_penalty;
    sampling.presence_penalty = (float)d.presence_penalty;
    sampling.frequency_penalty = (float)d.frequency_penalty;
    sampling.seed = given.seed ? seed : (uint64_t)(clock_now() * 1e9);

    if (!(s = load_engine("run", file, &engine, verbose)))
        goto done;
    /* From here on Ctrl-C ends an answer or a line; before, it ends the program. No SA_RESTART: it must end a
     * waiting read. */
    interrupt_event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL);
    sampling.max_tokens = max_tokens ? max_tokens : sluice_plan(s)->max_model_len;
    session_open(&r.session, s, tokenizer, template, &sampling);
    r.session.interrupted = &interrupted;
    session_reset(&r.session, system);
    if (!template && r.interactive)
        fprintf(stderr, "%s has no chat template: each line is continued as text\n", model);
    if (r.interactive) {
        chat(&r, system);
        status = 0;
    } else if (answer(&r, prompt, len) == 0) {
        status = interrupted ? 128 + SIGINT : 0;
    }
    session_close(&r.session);
    goto done;

failed:
    fprintf(stderr, "sluice run: %s\n", e.msg);
done:
    if (s)
        sluice_close(s);
    chat_template_free(template);
    tokenizer_free(tokenizer);
    if (file)
        model_file_close(file);
    free(piped);
    return status;
}
