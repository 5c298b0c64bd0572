/* Writing the metrics page: Prometheus' text format, family after family. Private to src/http. */
#ifndef SLUICE_HTTP_METRICS_PAGE_H
#define SLUICE_HTTP_METRICS_PAGE_H

#include "http/metrics.h"

struct page {
    struct str *out;
    char model[580];  /* model_name="…" */
    char labels[600]; /* model_name="…",engine="0" */
};

void page_heading(struct page *p, const char *name, const char *type, const char *help);
void page_gauge(struct page *p, const char *name, const char *help, double v);
/* `name` without _total. */
void page_counter(struct page *p, const char *name, const char *help, double v);
/* Samples of a counter (again without _total) or gauge under one label more, under a heading of their own. */
struct page_part {
    const char *value; /* of the label */
    double n;
};
void page_parts(struct page *p, const char *name, const char *type, const char *help, const char *label,
                const struct page_part *parts, int n);
void page_histogram(struct page *p, const char *name, const char *help, const struct histogram *h);
/* One histogram under a heading that is there already; `labels` without braces, may be empty. */
void page_buckets(struct page *p, const char *name, const char *labels, const struct histogram *h);
/* A label's value: backslash, quote and newline escaped. */
void page_escape(char *out, size_t n, const char *text);

/* metrics_buckets.c: the histograms of requests; and giving some of them other bounds. */
void page_write_histograms(struct page *p, const struct metrics *m);
void metrics_use_buckets(struct metrics *m, const struct metrics_buckets *b);

/* metrics_engine.c: what the engine counts. */
void page_write_engine(struct page *p, const struct metrics_page *page);

#endif
