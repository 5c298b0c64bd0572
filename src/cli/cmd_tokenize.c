/* `sluice tokenize MODEL [TEXT|-]`: text to token ids, one a line with its text, or back with --decode. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "text/tokenizer.h"

/* All of standard input. */
static int read_stdin(struct str *text)
{
    char block[65536];
    size_t n;
    while ((n = fread(block, 1, sizeof block, stdin)) > 0)
        str_add(text, block, n);
    return ferror(stdin) ? -1 : 0;
}

/* A token's bytes in quotes, so that spaces and half characters can be seen. */
static void print_quoted(const char *bytes, size_t len)
{
    putchar('"');
    for (size_t i = 0; i < len;) {
        unsigned c;
        int n = utf8_decode(bytes + i, len - i, &c);
        if (bytes[i] == '\n')
            fputs("\\n", stdout);
        else if (bytes[i] == '"' || bytes[i] == '\\')
            printf("\\%c", bytes[i]);
        else if (n == 0 || c < ' ' || (c >= 0x7F && c < 0xA0)) /* a control character could move the cursor */
            for (int k = 0; k < (n ? n : 1); k++)
                printf("\\x%02x", (unsigned char)bytes[i + (size_t)k]);
        else
            fwrite(bytes + i, 1, (size_t)n, stdout);
        i += n ? (size_t)n : 1;
    }
    putchar('"');
}

static int encode(const struct tokenizer *t, const struct str *text, bool special, bool only_ids,
                  struct err *e)
{
    struct token_list ids = {0};
    unsigned flags = special ? TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL : 0;
    int status = tokenizer_encode(t, str_text(text), text->len, NULL, flags, 0, &ids, e);
    for (size_t i = 0; i < ids.n && status == 0; i++) {
        if (only_ids) {
            printf(i ? " %d" : "%d", ids.ids[i]);
            continue;
        }
        size_t len;
        const char *bytes = tokenizer_bytes(t, ids.ids[i], &len);
        printf("%8d  ", ids.ids[i]);
        print_quoted(bytes, len);
        puts(tokenizer_is_special(t, ids.ids[i]) ? "  special" : "");
    }
    if (status == 0 && only_ids)
        putchar('\n');
    token_list_free(&ids);
    return status;
}

/* text holds ids, apart by anything that JSON lists and --ids put between them. */
static int decode(const struct tokenizer *t, const struct str *text, bool special, struct err *e)
{
    struct token_list ids = {0};
    struct str out = {0};
    const char *s = str_text(text);
    int status = strlen(s) == text->len ? 0 : err_set(e, ERR_INVALID, "the ids hold a NUL byte");
    while (status == 0 && *(s += strspn(s, " \t\r\n,[]"))) {
        char *end;
        errno = 0;
        long long id = strtoll(s, &end, 10);
        if (end == s || (*end && !strchr(" \t\r\n,[]", *end)))
            status = err_set(e, ERR_INVALID, "\"%.20s\" is not a token id (--decode takes numbers)", s);
        else if (errno || id < 0 || id >= tokenizer_size(t))
            status = err_set(e, ERR_INVALID, "token id %.*s is outside the vocabulary, 0 … %d",
                             (int)(end - s), s, tokenizer_size(t) - 1);
        else
            token_list_add(&ids, (int32_t)id);
        s = end;
    }
    if (status == 0) {
        tokenizer_decode(t, ids.ids, ids.n, !special, &out);
        fwrite(str_text(&out), 1, out.len, stdout);
        putchar('\n');
    }
    str_free(&out);
    token_list_free(&ids);
    return status;
}

int cmd_tokenize(int argc, char **argv)
{
    const char *path = NULL, *argument = "-";
    bool only_ids = false, special = true, back = false;
    const struct option_positional words[] = {
        {"MODEL", &path, true, "a .gguf file or a Hugging Face directory"},
        {"TEXT", &argument, false, "the text; without it, or as -, all of standard input"},
        {0},
    };
    const struct option_spec options[] = {
        {.name = "ids", .flag = &only_ids, .help = "print the ids alone, in one line"},
        {.name = "special",
         .flag = &special,
         .help =
             "recognise special tokens in the text and add those that the model wants around it (BOS); with "
             "--decode, print special tokens"},
        {.name = "decode", .flag = &back, .help = "TEXT is ids (1 2 3, or [1,2,3]): print their text"},
        {0},
    };
    const struct option_command command = {"tokenize",
                                           "Turns text into a model's token ids, and prints each with the "
                                           "text it stands for. Weights are not read.",
                                           words, options};
    int status = options_parse(&command, argc, argv);
    if (status >= 0)
        return status;
    if (only_ids && back)
        return options_usage_error(&command, "--ids is about encoding and --decode does the opposite");

    struct err e = {0};
    struct str text = {0};
    struct model_file *f = model_file_open(path, &e);
    struct tokenizer *t = f ? tokenizer_open(f, &e) : NULL;
    model_file_close(f);
    status = t ? 0 : -1;
    if (status == 0 && strcmp(argument, "-") != 0)
        str_adds(&text, argument);
    else if (status == 0 && read_stdin(&text) != 0)
        status = err_set(&e, ERR_IO, "cannot read standard input");
    if (status == 0)
        status = back ? decode(t, &text, special, &e) : encode(t, &text, special, only_ids, &e);
    if (status)
        fprintf(stderr, "sluice tokenize: %s\n", e.msg);
    str_free(&text);
    tokenizer_free(t);
    return status ? EXIT_FAILED : 0;
}
