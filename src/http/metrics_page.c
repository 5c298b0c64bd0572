#include "http/metrics_page.h"

#include <stdio.h>
#include <string.h>

void page_heading(struct page *p, const char *name, const char *type, const char *help)
{
    str_addf(p->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void page_gauge(struct page *p, const char *name, const char *help, double v)
{
    page_heading(p, name, "gauge", help);
    str_addf(p->out, "%s{%s} %.17g\n", name, p->labels, v);
}

void page_counter(struct page *p, const char *name, const char *help, double v)
{
    char full[128];
    snprintf(full, sizeof full, "%s_total", name);
    page_heading(p, full, "counter", help);
    str_addf(p->out, "%s{%s} %.17g\n", full, p->labels, v);
}

void page_parts(struct page *p, const char *name, const char *type, const char *help, const char *label,
                const struct page_part *parts, int n)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", name, strcmp(type, "counter") == 0 ? "_total" : "");
    page_heading(p, full, type, help);
    for (int i = 0; i < n; i++)
        str_addf(p->out, "%s{%s,%s=\"%s\"} %.17g\n", full, p->labels, label, parts[i].value, parts[i].n);
}

void page_buckets(struct page *p, const char *name, const char *labels, const struct histogram *h)
{
    uint64_t sum = 0;
    const char *comma = labels[0] ? "," : "", *open = labels[0] ? "{" : "", *close = labels[0] ? "}" : "";
    for (int i = 0; i < h->n; i++) {
        sum += h->counts[i];
        char bound[32];
        snprintf(bound, sizeof bound, "%.15g", h->bounds[i]);
        str_addf(p->out, "%s_bucket{%s%sle=\"%s%s\"} %llu\n", name, labels, comma, bound,
                 strpbrk(bound, ".e") ? "" : ".0", (unsigned long long)sum);
    }
    sum += h->counts[h->n];
    str_addf(p->out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", name, labels, comma, (unsigned long long)sum);
    str_addf(p->out, "%s_sum%s%s%s %.17g\n%s_count%s%s%s %llu\n", name, open, labels, close, h->sum, name,
             open, labels, close, (unsigned long long)sum);
}

void page_histogram(struct page *p, const char *name, const char *help, const struct histogram *h)
{
    page_heading(p, name, "histogram", help);
    page_buckets(p, name, p->labels, h);
}

void page_escape(char *out, size_t n, const char *text)
{
    size_t at = 0;
    for (; *text && at + 3 < n; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n')
            out[at++] = '\\';
        out[at++] = *text == '\n' ? 'n' : *text;
    }
    out[at] = '\0';
}
