#include "api/json_write.h"

#include <math.h>
#include <string.h>

/* True for bytes that stand for themselves inside a JSON string. */
static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c != '"' && c != '\\' && c < 0x80;
}

void json_write_string(struct str *out, const char *text, size_t len)
{
    str_reserve(out, len + 2);
    str_addc(out, '"');
    for (size_t i = 0; i < len;) {
        size_t run = i;
        while (run < len && is_plain((unsigned char)text[run]))
            run++;
        str_add(out, text + i, run - i);
        i = run;
        if (i == len)
            break;
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x80) {
            unsigned cp;
            int n = utf8_decode(text + i, len - i, &cp);
            if (n > 0)
                str_add(out, text + i, (size_t)n);
            else
                str_add_utf8(out, 0xFFFD);
            i += n > 0 ? (size_t)n : 1;
            continue;
        }
        switch (c) {
        case '"':
            str_adds(out, "\\\"");
            break;
        case '\\':
            str_adds(out, "\\\\");
            break;
        case '\n':
            str_adds(out, "\\n");
            break;
        case '\r':
            str_adds(out, "\\r");
            break;
        case '\t':
            str_adds(out, "\\t");
            break;
        default:
            str_addf(out, "\\u%04x", c);
        }
        i++;
    }
    str_addc(out, '"');
}

void json_write_text(struct str *out, const char *text)
{
    if (text)
        json_write_string(out, text, strlen(text));
    else
        str_adds(out, "null");
}

void json_write_float(struct str *out, float v)
{
    if (isfinite(v))
        str_addf(out, "%.9g", (double)v);
    else
        str_adds(out, v > 0 ? "9999.0" : "-9999.0");
}

static int add_bytes(const char *bytes, size_t n, void *out)
{
    str_add(out, bytes, n);
    return 0;
}

void json_write_value(struct str *out, const json_t *v)
{
    json_dump_callback(v, add_bytes, out, JSON_ENCODE_ANY | JSON_COMPACT);
}

void json_write_ids(struct str *out, const int32_t *ids, int n)
{
    str_addc(out, '[');
    for (int i = 0; i < n; i++)
        str_addf(out, i ? ",%d" : "%d", ids[i]);
    str_addc(out, ']');
}
